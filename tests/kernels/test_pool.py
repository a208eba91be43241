from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sprint.kernels import pool
from sprint.kernels.host import HostDevice
from sprint.kernels.simt import SimtDevice

F = np.float32
# x, window, stride, pad: nothing square; overlap, gaps, pad, one row, the 2x2 path with even and odd extents
CASES = [
    ((2, 3, 5, 9), (3, 2), (2, 1), (0, 1)),
    ((3, 1, 6, 7), (2, 3), (1, 2), (1, 2)),
    ((1, 2, 9, 4), (3, 3), (2, 2), (0, 0)),
    ((2, 1, 7, 8), (1, 2), (3, 4), (0, 0)),
    ((1, 1, 1, 5), (1, 2), (1, 1), (0, 0)),
    ((2, 2, 4, 6), (4, 6), (1, 1), (2, 3)),
    ((2, 3, 4, 10), (2, 2), (2, 2), (0, 0)),
    ((3, 1, 7, 5), (2, 2), (2, 2), (0, 0)),
    ((1, 2, 2, 3), (2, 2), (2, 2), (0, 0)),
    ((1, 2, 20, 18), (17, 16), (2, 1), (1, 0)),  # 272 elements: the indices need more than a byte
]


def extent(size, window, stride, pad):
    return (size + 2 * pad - window) // stride + 1


def naive_pool(x, window, stride, pad):
    """Maximum and its index in the window, row by row; the first of equals wins, and NaN beats everything."""
    C, N, H, W = x.shape
    P, Q = extent(H, window[0], stride[0], pad[0]), extent(W, window[1], stride[1], pad[1])
    y, arg = np.zeros((C, N, P, Q)), np.zeros((C, N, P, Q), int)
    for c, n, p, q in np.ndindex(C, N, P, Q):
        found = []
        for r, s in np.ndindex(window):
            h, w = p * stride[0] - pad[0] + r, q * stride[1] - pad[1] + s
            if 0 <= h < H and 0 <= w < W:
                v = float(x[c, n, h, w])
                found.append((math.inf if math.isnan(v) else v, not math.isnan(v), r * window[1] + s, v))
        best = min(found, key=lambda f: (-f[0], f[1], f[2]))
        y[c, n, p, q], arg[c, n, p, q] = best[3], best[2]
    return y, arg


def naive_gradient(dy, arg, x_shape, window, stride, pad):
    dx = np.zeros(x_shape)
    for c, n, p, q in np.ndindex(dy.shape):
        r, s = divmod(int(arg[c, n, p, q]), window[1])
        dx[c, n, p * stride[0] - pad[0] + r, q * stride[1] - pad[1] + s] += float(dy[c, n, p, q])
    return dx


def forward(device, x, window, stride, pad, poison):
    shape = pool.pooled_shape(x.shape, window, stride, pad)
    y, arg = poison(shape), poison(shape, pool.arg_dtype(window))
    pool.max_pool(device, x, y, arg, window, stride, pad)
    return y, arg


def check(device, x, window, stride, pad, dy, poison):
    y, arg = forward(device, x, window, stride, pad, poison)
    reference, where = naive_pool(x, window, stride, pad)
    np.testing.assert_array_equal(y, reference)  # no arithmetic: exact
    np.testing.assert_array_equal(arg, where)
    dx = poison(x.shape)
    pool.max_pool_backward(device, dy, arg, dx, window, stride, pad)
    reference = naive_gradient(dy, where, x.shape, window, stride, pad)
    np.testing.assert_allclose(dx, reference, rtol=1e-5, atol=1e-5)  # float32 sums of overlapping windows


@pytest.mark.parametrize("shape, window, stride, pad", CASES)
def test_pool_and_gradient_equal_naive_loops(device, rng, poison, shape, window, stride, pad):
    x = rng.integers(-4, 3, shape).astype(F)  # few values: windows have equal maxima
    dy = rng.standard_normal(pool.pooled_shape(shape, window, stride, pad)).astype(F)
    check(device, x, window, stride, pad, dy, poison)


pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(1, 9), st.integers(1, 9)), pairs, pairs,
       st.tuples(st.integers(0, 3), st.integers(0, 3)), st.integers(0, 99))
def test_any_shape(shape, window, stride, pad, seed):
    pad = tuple(min(p, k - 1) for p, k in zip(pad, window, strict=True))
    window = tuple(min(k, size + 2 * p) for k, size, p in zip(window, shape[2:], pad, strict=True))
    pad = tuple(min(p, k - 1) for p, k in zip(pad, window, strict=True))
    rng = np.random.default_rng(seed)
    values = np.array([-3, -2, -1, 0, 1, -math.inf, math.nan], F)
    x = rng.choice(values, shape)
    dy = rng.standard_normal(pool.pooled_shape(shape, window, stride, pad)).astype(F)
    for device in (HostDevice(threads=2), SimtDevice(block=32, order="shuffle", seed=seed)):
        check(device, x, window, stride, pad, dy, lambda s, d=F: np.full(s, 77, d))


@pytest.mark.parametrize("value", [-math.inf, math.nan])
@pytest.mark.parametrize("window, stride, pad", [((2, 2), (2, 2), (0, 0)), ((2, 2), (1, 1), (1, 1)),
                                                 ((2, 1), (1, 1), (0, 0))])
def test_a_window_of_one_value_takes_its_first_element_inside(device, poison, value, window, stride, pad):
    x = np.full((1, 1, 2, 2), value, F)
    y, arg = forward(device, x, window, stride, pad, poison)
    np.testing.assert_array_equal(y, np.full(y.shape, value))
    np.testing.assert_array_equal(arg, naive_pool(x, window, stride, pad)[1])
    dx = poison(x.shape)
    pool.max_pool_backward(device, np.ones(y.shape, F), arg, dx, window, stride, pad)
    assert dx.sum() == y.size  # nothing fell outside


@pytest.mark.parametrize("window, stride", [((2, 2), (2, 2)), ((2, 2), (1, 2)), ((1, 4), (1, 4))])
def test_nan_propagates_alike_in_body_and_tail(device, poison, window, stride):
    for channels in range(1, 10):
        x = np.tile(np.array([1, np.nan, 2, 3], F), (channels, 1, 2, 1))
        y, arg = forward(device, x, window, stride, (0, 0), poison)
        reference, where = naive_pool(x, window, stride, (0, 0))
        np.testing.assert_array_equal(y, reference)
        np.testing.assert_array_equal(arg, where)
        assert np.isnan(y[..., 0]).all()


def test_nan_in_every_place_of_a_long_row(device, poison):
    for window, stride in (((2, 2), (2, 2)), ((2, 2), (2, 1))):
        for w in range(37):
            x = np.zeros((1, 1, 2, 37), F)
            x[0, 0, 1, w] = np.nan
            y, arg = forward(device, x, window, stride, (0, 0), poison)
            reference, where = naive_pool(x, window, stride, (0, 0))
            np.testing.assert_array_equal(y, reference)
            np.testing.assert_array_equal(arg, where)


def test_overlapping_windows_add(device, poison):
    x = np.array([5, 3, 1, 2, 5], F).reshape(1, 1, 1, 5)
    _, arg = forward(device, x, (1, 2), (1, 1), (0, 0), poison)
    dx = poison(x.shape)
    pool.max_pool_backward(device, np.ones((1, 1, 1, 4), F), arg, dx, (1, 2), (1, 1))
    assert dx.ravel().tolist() == [1, 1, 0, 1, 1]


def test_overlapping_windows_keep_the_sum(device, rng, poison):
    x = rng.standard_normal((2, 1, 9, 7)).astype(F)
    y, arg = forward(device, x, (3, 3), (2, 2), (0, 0), poison)
    dy, dx = rng.standard_normal(y.shape).astype(F), poison(x.shape)
    pool.max_pool_backward(device, dy, arg, dx, (3, 3), (2, 2))
    assert math.isclose(float(dx.sum(dtype=float)), float(dy.sum(dtype=float)), abs_tol=1e-5)


def test_pad_never_wins(device, poison):
    x = np.full((1, 1, 3, 2), -7, F)
    y, arg = forward(device, x, (3, 2), (1, 1), (2, 1), poison)
    assert (y == -7).all()
    assert arg.ravel()[0] == 5  # only the window's last element lies inside x


@pytest.mark.parametrize("shape, window, stride, pad", [CASES[0], CASES[2], CASES[6], CASES[7], CASES[9]])
def test_gradient_of_relu_before_the_pool(device, rng, poison, shape, window, stride, pad):
    x = np.maximum(rng.integers(-9, 3, shape), 0).astype(F)
    x[0, 0] = 0
    y, arg = forward(device, x, window, stride, pad, poison)
    dy, dx = rng.standard_normal(y.shape).astype(F), poison(shape)
    pool.max_pool_backward(device, dy, arg, dx, window, stride, pad, relu_of=y)
    reference = naive_gradient(np.where(y > 0, dy, 0), arg, shape, window, stride, pad)
    np.testing.assert_allclose(dx, reference, rtol=1e-5, atol=1e-5)
    assert (y == 0).any() and (y > 0).any()


@pytest.mark.parametrize("window, stride, pad", [((2, 2), (2, 2), (0, 0)), ((2, 3), (1, 1), (1, 1)),
                                                 ((1, 3), (1, 2), (0, 1))])
def test_lines_longer_than_a_run(fast, rng, poison, window, stride, pad):
    x = rng.integers(-4, 3, (1, 2, 3, 2001)).astype(F)
    dy = rng.standard_normal(pool.pooled_shape(x.shape, window, stride, pad)).astype(F)
    check(fast, x, window, stride, pad, dy, poison)


@pytest.mark.parametrize("H, W", [(2050, 2052), (2049, 2051), (9, 500_001)])
def test_a_gradient_beyond_the_caches(fast, rng, poison, H, W):
    """dx of more than 32 MiB is written past them; compared with NumPy's placing of dy by arg."""
    planes = -(-9_000_000 // (H * W))
    P, Q = H // 2, W // 2
    dy = rng.standard_normal((1, planes, P, Q)).astype(np.float32)
    arg = rng.integers(0, 4, dy.shape).astype(np.uint8)
    dx, expected = poison((1, planes, H, W)), np.zeros((1, planes, H, W), np.float32)
    for tap in range(4):
        expected[:, :, tap // 2:2 * P:2, tap % 2:2 * Q:2] = np.where(arg == tap, dy, 0)
    pool.max_pool_backward(fast, dy, arg, dx, (2, 2), (2, 2))
    np.testing.assert_array_equal(dx, expected)


def test_equal_bytes_every_run(rng, poison):
    x = rng.integers(0, 3, (8, 4, 33, 65)).astype(F)
    found = set()
    for threads in (1, 2, 2, 3):
        device = HostDevice(threads=threads)
        y, arg = forward(device, x, (3, 3), (1, 2), (1, 1), poison)
        dx = poison(x.shape)
        pool.max_pool_backward(device, np.sin(np.arange(y.size, dtype=F)).reshape(y.shape), arg, dx, (3, 3),
                               (1, 2), (1, 1))
        found.add(y.tobytes() + arg.tobytes() + dx.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("shape", [(3, 0, 4, 6), (0, 2, 4, 6)])
def test_no_samples_no_launch(device, forbid_launch, poison, shape):
    forbid_launch()
    for window, stride in (((2, 2), (2, 2)), ((3, 2), (1, 2))):
        y, arg = forward(device, np.empty(shape, F), window, stride, (0, 0), poison)
        pool.max_pool_backward(device, y, arg, np.empty(shape, F), window, stride)


@pytest.mark.parametrize("window, stride, pad, message", [
    ((2, 2), (0, 1), (0, 0), "height stride"), ((2, 2), (1, 0), (0, 0), "width stride"),
    ((2, 2), (1, 2**63 - 1), (0, 0), "width stride"), ((2, 2), (1, 1), (-1, 0), "height pad"),
    ((2, 2), (1, 1), (0, 2**63 - 1), "width pad"), ((0, 2), (1, 1), (0, 0), "height of the window"),
    ((2, 2**63 - 1), (1, 1), (0, 0), "width of the window"), ((6, 2), (1, 1), (0, 0), "window of at most 5"),
    ((2, 3), (1, 1), (2, 0), "pad less than the window"),
    ((2, 3), (1, 1), (0, 3), "pad less than the window"),
])
def test_absurd_extents_are_refused_before_any_launch(device, forbid_launch, window, stride, pad, message):
    forbid_launch()
    x, y, arg = np.ones((2, 3, 5, 9), F), np.ones((2, 3, 5, 9), F), np.ones((2, 3, 5, 9), np.uint8)
    with pytest.raises(ValueError, match=f"max_pool: expected.*{message}"):
        pool.max_pool(device, x, y, arg, window, stride, pad)
    with pytest.raises(ValueError, match=f"max_pool: expected.*{message}"):
        pool.max_pool_backward(device, y, arg, x, window, stride, pad)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("odd", [2, None, (2,), (2, 2, 2), (True, 2), (2, np.True_), (2.0, 2), "22", {2: 2}])
def test_only_pairs_of_whole_numbers_are_extents(fast, forbid_launch, place, odd):
    forbid_launch()
    pairs = [(2, 2), (1, 1), (1, 0)]
    pairs[place] = odd
    x, y, arg = np.ones((2, 3, 5, 9), F), np.ones((2, 3, 6, 8), F), np.ones((2, 3, 6, 8), np.uint8)
    name = ("window", "stride", "pad")[place]
    for act in (lambda: pool.pooled_shape(x.shape, *pairs), lambda: pool.max_pool(fast, x, y, arg, *pairs),
                lambda: pool.max_pool_backward(fast, y, arg, x, *pairs)):
        with pytest.raises(ValueError, match=f"max_pool: expected {name} as two whole numbers"):
            act()


def test_numpy_integers_are_extents_and_do_not_wrap(fast, poison):
    window = np.array([200, 2], np.uint8)
    assert pool.arg_dtype(window) == np.int32
    assert pool.pooled_shape((1, 1, 300, 4), window, (np.int64(100), np.int8(2)), np.zeros(2, int)) == (1, 1, 2, 2)
    x = np.arange(24, dtype=F).reshape(1, 1, 4, 6)
    y, _ = forward(fast, x, (np.int32(2), np.int64(2)), [np.int8(2), 3], (0, 0), poison)
    assert y.tolist() == [[[[7, 10], [19, 22]]]]


def test_a_window_whose_indices_do_not_fit_is_refused():
    with pytest.raises(ValueError, match="max_pool: expected a window of at most 2147483647 elements"):
        pool.pooled_shape((1, 1, 2**16, 2**16), (2**16, 2**16), (1, 1))


def test_wrong_arrays_are_refused(fast):
    x, y, arg = np.ones((2, 3, 4, 9), F), np.ones((2, 3, 2, 4), F), np.zeros((2, 3, 2, 4), np.uint8)
    square = (2, 2), (2, 2)
    with pytest.raises(ValueError, match=r"max_pool: expected x\(C,N,H,W\)"):
        pool.max_pool(fast, x[0], y, arg, *square)
    with pytest.raises(ValueError, match=r"max_pool: expected y\(2, 3, 2, 4\), got \(2, 3, 4, 2\)"):
        pool.max_pool(fast, x, y.reshape(2, 3, 4, 2), arg, *square)
    with pytest.raises(ValueError, match="max_pool_backward: expected relu_of"):
        pool.max_pool_backward(fast, y, arg, x, *square, relu_of=x)
    with pytest.raises(TypeError, match="max_pool: expected arg as uint8"):
        pool.max_pool(fast, x, y, arg.astype(np.int32), *square)
    with pytest.raises(TypeError, match="float32, got float64"):
        pool.max_pool(fast, x.astype(float), y, arg, *square)
    with pytest.raises(ValueError, match="contiguous"):
        pool.max_pool(fast, np.ones((2, 3, 9, 4), F).transpose(0, 1, 3, 2), y, arg, *square)
