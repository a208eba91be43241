from __future__ import annotations

import math

import numpy as np
import pytest
from sprint.kernels import activation

F = np.float32
EDGES = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, 1e-42, -1e-42, 3e38, -3e38, 100, -100, 88.8, -88.8]


def logistic(v):
    return 1 / (1 + math.exp(-v)) if v > -700 else 0.0


def numbers(rng, count):
    return np.resize(np.concatenate([rng.standard_normal(29), EDGES]), count).astype(F)


@pytest.mark.parametrize("count", [1, 31, 43, 70])
def test_relu(device, rng, poison, count):
    x, y = numbers(rng, count), poison(count)
    activation.relu(device, x, y)
    assert y.tolist() == [v if v > 0 else 0.0 for v in x.tolist()]


@pytest.mark.parametrize("count", [1, 31, 43, 70])
def test_sigmoid(device, rng, poison, count):
    x, y = numbers(rng, count), poison(count)
    activation.sigmoid(device, x, y)
    # expf is right to 2 units in the last place; below 2^-126 float32 has fewer digits
    np.testing.assert_allclose(y, [logistic(v) for v in x.tolist()], rtol=5e-7, atol=1e-38)


def test_sigmoid_over_the_whole_range_of_the_exponential(fast, poison):
    x = np.concatenate([np.linspace(-110, 110, 100_003), [np.inf, -np.inf, -0.0]]).astype(F)
    y = poison(x.size)
    activation.sigmoid(fast, x, y)
    with np.errstate(over="ignore"):
        expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(y, expected, rtol=4e-7, atol=1e-38)


def test_nan_is_kept_in_body_and_tail(device, poison):
    for op in (activation.relu, activation.sigmoid):
        for count in range(1, 40):
            x, y = np.zeros((1, count), F), poison((1, count))
            x[0, -1] = np.nan
            op(device, x, y)
            assert np.isnan(y).tolist() == np.isnan(x).tolist()


def test_relu_gradient_passes_where_the_output_is_positive(device, rng, poison):
    x, dy = numbers(rng, 70).reshape(2, 35), rng.standard_normal((2, 35)).astype(F)
    y, dx = np.where(x > 0, x, F(0)), poison((2, 35))
    activation.relu_backward(device, y, dy, dx)
    assert dx.ravel().tolist() == [d if v > 0 else 0.0
                                   for v, d in zip(x.ravel().tolist(), dy.ravel().tolist(), strict=True)]


def test_sigmoid_gradient_is_the_slope(device, poison):
    points = np.linspace(-6, 6, 37).astype(F)
    y, dy, dx = poison(37), np.linspace(-2, 3, 37).astype(F), poison(37)
    activation.sigmoid(device, points, y)
    activation.sigmoid_backward(device, y, dy, dx)
    h = 1e-5
    slopes = [(logistic(v + h) - logistic(v - h)) / (2 * h) for v in points.tolist()]
    np.testing.assert_allclose(dx, dy * np.array(slopes), rtol=2e-5, atol=1e-7)  # 1 - y loses digits near 1


def test_in_place_equals_out_of_place(device, rng, poison):
    count = 43 if device.mode == "simt" else 50_001
    x, d = numbers(rng, count), rng.standard_normal(count).astype(F)
    for forward, backward in ((activation.relu, activation.relu_backward),
                              (activation.sigmoid, activation.sigmoid_backward)):
        y, dx, same_y, same_d = poison(count), poison(count), x.copy(), d.copy()
        forward(device, x, y)
        backward(device, y, d, dx)
        forward(device, same_y, same_y)
        backward(device, y, same_d, same_d)
        assert same_y.tobytes() == y.tobytes() and same_d.tobytes() == dx.tobytes()


def test_no_elements_no_launch(device, forbid_launch):
    forbid_launch()
    empty = np.empty((3, 0, 2, 2), F)
    for op in (activation.relu, activation.sigmoid):
        op(device, empty, empty)
    for op in (activation.relu_backward, activation.sigmoid_backward):
        op(device, empty, empty, empty)


@pytest.mark.parametrize("op, inputs", [(activation.relu, 1), (activation.sigmoid, 1),
                                        (activation.relu_backward, 2), (activation.sigmoid_backward, 2)])
def test_wrong_arguments_are_refused(fast, op, inputs):
    x = [np.ones((2, 6), F)] * inputs
    with pytest.raises(ValueError, match=rf"{op.__name__}: expected \w+\(2, 6\), got \(6, 2\)"):
        op(fast, *x, np.ones((6, 2), F))
    with pytest.raises(TypeError, match="float32, got float64"):
        op(fast, *x, np.ones((2, 6)))
    for view in (np.ones((2, 12), F)[:, ::2], np.ones((6, 2), F).T, np.ones((2, 6), F)[::-1],
                 np.broadcast_to(np.ones(6, F), (2, 6))):
        with pytest.raises(ValueError, match="contiguous"):
            op(fast, *[view] * inputs, np.ones((2, 6), F))
