from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sprint.kernels import reduce
from sprint.kernels.host import HostDevice
from sprint.kernels.simt import SimtDevice

F = np.float32
SHAPES = [(1, 1), (3, 7), (1, 300), (5, 33), (2, 4100), (40, 3)]
OPS = [(reduce.row_sum, 0, math.fsum), (reduce.row_max, 0, max), (reduce.column_sum, 1, math.fsum),
       (reduce.column_max, 1, max)]
by_name = pytest.mark.parametrize("op, axis, naive", OPS, ids=[op.__name__ for op, _, _ in OPS])


def lines(x, axis):
    """Rows (axis 0) or columns (axis 1) of x as lists of float64."""
    return [[float(v) for v in line] for line in (x if axis == 0 else x.T)]


@by_name
@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(device, rng, poison, op, axis, naive, shape):
    x, out = rng.standard_normal(shape).astype(F), poison(shape[axis])
    op(device, x, out)
    np.testing.assert_allclose(out, [naive(line) for line in lines(x, axis)], rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_any_shape(M, J, seed):
    x = np.random.default_rng(seed).standard_normal((M, J)).astype(F)
    for device in (HostDevice(threads=2), SimtDevice(block=32, order="shuffle", seed=seed)):
        for op, axis, naive in OPS:
            out = np.full(x.shape[axis], np.nan, F)
            op(device, x, out)
            np.testing.assert_allclose(out, [naive(line) for line in lines(x, axis)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["constant", "positive", "signed"])
def test_ten_million_elements_keep_their_digits(fast, rng, poison, kind):
    J = 10**7
    x = {"constant": lambda: np.full(J, 0.1, F), "positive": lambda: rng.random(J, F),
         "signed": lambda: rng.standard_normal(J, F)}[kind]()
    exact, size = float(x.sum(dtype=float)), float(np.abs(x).sum(dtype=float))
    for op, view in ((reduce.row_sum, x.reshape(1, J)), (reduce.column_sum, x.reshape(J, 1))):
        out = poison(1)
        op(fast, view, out)
        assert abs(float(out[0]) - exact) <= 1e-6 * size  # the plain float32 loop is wrong by 1e-2 of it


@by_name
def test_nan_and_infinity(device, poison, op, axis, naive):
    for place in (0, 40, 2100):
        x = np.ones((2, 2101), F)
        x[0, place], x[1, place] = np.nan, -np.inf if naive is max else np.inf
        x, out = np.ascontiguousarray(x if axis == 0 else x.T), poison(2)
        op(device, x, out)
        assert np.isnan(out[0]) and out[1] == (1 if naive is max else np.inf)


@by_name
def test_maximum_of_minus_infinity(device, poison, op, axis, naive):
    out = poison(3)
    op(device, np.full((3, 3), -np.inf, F), out)
    assert (out == -np.inf).all()


@by_name
def test_nothing_to_reduce(device, forbid_launch, poison, op, axis, naive):
    out = poison(3)
    op(device, np.empty((3, 0) if axis == 0 else (0, 3), F), out)
    assert (out == (-np.inf if naive is max else 0)).all()
    forbid_launch()
    op(device, np.empty((0, 3) if axis == 0 else (3, 0), F), np.empty(0, F))


@by_name
def test_wrong_arguments_are_refused(fast, op, axis, naive):
    out = np.ones((3, 5)[axis], F)
    with pytest.raises(ValueError, match=rf"{op.__name__}: expected x\(M,J\), got shape \(15,\)"):
        op(fast, np.ones(15, F), out)
    with pytest.raises(ValueError, match=rf"{op.__name__}: expected out"):
        op(fast, np.ones((3, 5), F), np.ones((5, 3)[axis], F))
    with pytest.raises(TypeError, match="float32, got float64"):
        op(fast, np.ones((3, 5)), out)
    with pytest.raises(ValueError, match="contiguous"):
        op(fast, np.ones((5, 3), F).T, out)
