from __future__ import annotations

import math

import numpy as np
import pytest
from sprint.kernels import update

F = np.float32
COUNTS = [1, 33, 70]
TOLERANCE = {"rtol": 3e-6, "atol": 1e-7}  # four roundings, fused or not


def numbers(rng, count, how_many):
    return [rng.standard_normal(count).astype(F) for _ in range(how_many)]


def doubles(*arrays):
    return [[float(v) for v in a] for a in arrays]


@pytest.mark.parametrize("count", COUNTS)
def test_scale(device, rng, count):
    x, = numbers(rng, count, 1)
    reference = [-0.3 * v for v in x.tolist()]
    update.scale(device, x, -0.3)
    np.testing.assert_allclose(x, reference, **TOLERANCE)


@pytest.mark.parametrize("count", COUNTS)
def test_axpy(device, rng, count):
    x, y = numbers(rng, count, 2)
    reference = [b - 2.5 * a for a, b in zip(*doubles(x, y), strict=True)]
    update.axpy(device, -2.5, x, y)
    np.testing.assert_allclose(y, reference, **TOLERANCE)


@pytest.mark.parametrize("count", COUNTS)
def test_sgd(device, rng, count):
    w, g = numbers(rng, count, 2)
    reference = [a - 0.1 * (b + 0.02 * a) for a, b in zip(*doubles(w, g), strict=True)]
    update.sgd(device, w, g, 0.1, 0.02)
    np.testing.assert_allclose(w, reference, **TOLERANCE)


@pytest.mark.parametrize("count", COUNTS)
def test_momentum_over_three_steps(device, rng, count):
    w, = numbers(rng, count, 1)
    v, steps = np.zeros(count, F), numbers(rng, count, 3)
    weights, speeds = w.astype(float).tolist(), [0.0] * count
    for g in steps:
        for i in range(count):
            speeds[i] = 0.9 * speeds[i] - 0.05 * (float(g[i]) + 0.01 * weights[i])
            weights[i] += speeds[i]
        update.momentum(device, w, g, v, 0.05, 0.9, 0.01)
    np.testing.assert_allclose(v, speeds, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(w, weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", COUNTS)
def test_adagrad_over_three_steps(device, rng, count):
    w, = numbers(rng, count, 1)
    h, steps = np.zeros(count, F), numbers(rng, count, 3)
    weights, squares = w.astype(float).tolist(), [0.0] * count
    for g in steps:
        for i in range(count):
            gradient = float(g[i]) + 0.01 * weights[i]
            squares[i] += gradient**2
            weights[i] -= 0.05 * gradient / (math.sqrt(squares[i]) + 1e-8)
        update.adagrad(device, w, g, h, 0.05, 1e-8, 0.01)
    np.testing.assert_allclose(h, squares, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(w, weights, rtol=1e-5, atol=1e-6)


def test_adagrad_without_gradient_moves_nothing(device, rng):
    w, = numbers(rng, 35, 1)
    before, h = w.copy(), np.zeros(35, F)
    update.adagrad(device, w, np.zeros(35, F), h, 0.1)
    assert w.tobytes() == before.tobytes() and (h == 0).all()


def test_adagrad_gradient_whose_square_is_nothing(device):
    w, h = np.full(35, 2, F), np.zeros(35, F)
    update.adagrad(device, w, np.full(35, 1e-30, F), h, 0.1)
    assert (w == 2).all() and (h == 0).all()


def test_zero_rate_moves_nothing(device, rng):
    w, g = numbers(rng, 35, 2)
    before, v = w.copy(), np.zeros(35, F)
    update.sgd(device, w, g, 0.0, 0.5)
    update.momentum(device, w, g, v, 0.0, 0.9)
    assert w.tobytes() == before.tobytes()


def test_no_parameters_no_launch(device, forbid_launch):
    forbid_launch()
    e = np.empty(0, F)
    update.scale(device, e, 2.0)
    update.axpy(device, 2.0, e, e)
    update.sgd(device, e, e, 0.1)
    update.momentum(device, e, e, e, 0.1, 0.9)
    update.adagrad(device, e, e, e, 0.1)


def test_wrong_shapes_are_refused(fast):
    w, wrong = np.ones(4, F), np.ones(5, F)
    for call in (lambda: update.axpy(fast, 1.0, w, wrong), lambda: update.sgd(fast, w, wrong, 0.1),
                 lambda: update.momentum(fast, w, w, wrong, 0.1, 0.9),
                 lambda: update.adagrad(fast, w, w, wrong, 0.1)):
        with pytest.raises(ValueError, match=r"expected \w\(4,\), got \(5,\)"):
            call()
    with pytest.raises(TypeError, match="float32, got float64"):
        update.sgd(fast, w, np.ones(4), 0.1)
    with pytest.raises(ValueError, match="contiguous"):
        update.sgd(fast, np.ones(8, F)[::2], w, 0.1)


@pytest.mark.parametrize("call, name", [
    (lambda d, w: update.scale(d, w, math.nan), "scale: expected alpha"),
    (lambda d, w: update.axpy(d, math.inf, w, w.copy()), "axpy: expected alpha"),
    (lambda d, w: update.sgd(d, w, w.copy(), -0.1), "sgd: expected lr"),
    (lambda d, w: update.sgd(d, w, w.copy(), 0.1, math.nan), "sgd: expected weight_decay"),
    (lambda d, w: update.momentum(d, w, w.copy(), w.copy(), 0.1, 1.5), "momentum: expected mu"),
    (lambda d, w: update.momentum(d, w, w.copy(), w.copy(), math.inf, 0.5), "momentum: expected lr"),
    (lambda d, w: update.adagrad(d, w, w.copy(), w.copy(), 0.1, 0.0), "adagrad: expected eps"),
    (lambda d, w: update.adagrad(d, w, w.copy(), w.copy(), 0.1, 1e-50), "adagrad: expected eps"),
])
def test_absurd_numbers_are_refused_before_any_launch(device, forbid_launch, call, name):
    forbid_launch()
    with pytest.raises(ValueError, match=name):
        call(device, np.ones(4, F))
