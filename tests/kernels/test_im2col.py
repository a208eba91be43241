from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sprint.kernels import im2col as ops
from sprint.kernels import source
from sprint.kernels.conv_shape import ConvShape
from sprint.kernels.device import plan_launch
from sprint.kernels.host import HostDevice, plan_ranges
from sprint.kernels.simt import SimtDevice

F = np.float32
# C N H W, R S, stride, pad: nothing square, stride below and above the filter, the 3x3 path, rows longer than a vector
SHAPES = [
    ConvShape(2, 3, 5, 9, 1, 3, 2, (2, 1), (0, 1)),
    ConvShape(3, 1, 6, 7, 1, 2, 3, (1, 2), (1, 0)),
    ConvShape(1, 2, 4, 11, 1, 1, 1, (3, 2), (0, 0)),
    ConvShape(2, 1, 3, 2, 1, 3, 4, (1, 1), (2, 3)),
    ConvShape(2, 3, 6, 4, 1, 3, 3, (1, 1), (0, 0)),
    ConvShape(1, 2, 4, 45, 1, 3, 3, (1, 1), (1, 1)),
    ConvShape(2, 1, 37, 5, 1, 5, 2, (2, 3), (2, 1)),
    ConvShape(1, 1, 1, 40, 1, 1, 5, (1, 1), (0, 2)),
]


def taps(shape):
    """(row of col, column of col, c, n, h, w) of every element of col; h or w may be outside x."""
    (sh, sw), (ph, pw) = shape.stride, shape.pad
    for c, r, s, n, p, q in np.ndindex(shape.C, shape.R, shape.S, shape.N, shape.P, shape.Q):
        row, column = (c * shape.R + r) * shape.S + s, (n * shape.P + p) * shape.Q + q
        yield row, column, c, n, p * sh - ph + r, q * sw - pw + s


def naive_im2col(x, shape):
    col = np.zeros((shape.rows, shape.columns))
    for row, column, c, n, h, w in taps(shape):
        if 0 <= h < shape.H and 0 <= w < shape.W:
            col[row, column] = x[c, n, h, w]
    return col


def naive_col2im(col, shape):
    dx = np.zeros(shape.x)
    for row, column, c, n, h, w in taps(shape):
        if 0 <= h < shape.H and 0 <= w < shape.W:
            dx[c, n, h, w] += float(col[row, column])
    return dx


def check(device, shape, rng, output):
    x, col = rng.standard_normal(shape.x).astype(F), output((shape.rows, shape.columns))
    ops.im2col(device, x, col, shape)
    np.testing.assert_array_equal(col, naive_im2col(x, shape))  # copies: exact
    dcol, dx = rng.standard_normal(col.shape).astype(F), output(shape.x)
    ops.col2im(device, dcol, dx, shape)
    np.testing.assert_allclose(dx, naive_col2im(dcol, shape), rtol=1e-5, atol=1e-5)  # up to R*S additions


@pytest.mark.parametrize("shape", SHAPES)
def test_against_naive_loops(device, rng, poison, shape):
    check(device, shape, rng, poison)


pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(1, 8), st.integers(1, 8)), pairs, pairs,
       st.tuples(st.integers(0, 3), st.integers(0, 3)), st.integers(0, 99))
def test_any_shape(x, filter_, stride, pad, seed):
    filter_ = tuple(min(k, size + 2 * p) for k, size, p in zip(filter_, x[2:], pad, strict=True))
    shape = ConvShape(*x, 1, *filter_, stride, pad)
    for device in (HostDevice(threads=2), SimtDevice(block=32, order="shuffle", seed=seed)):
        check(device, shape, np.random.default_rng(seed), lambda s: np.full(s, np.nan, F))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_chunks_of_images_equal_the_whole(device, rng, poison, count):
    shape = ConvShape(2, 5, 4, 7, 1, 3, 2, (1, 2), (1, 0))
    x, whole, plane = rng.standard_normal(shape.x).astype(F), poison((12, shape.columns)), shape.P * shape.Q
    ops.im2col(device, x, whole, shape)
    dx, chunked = poison(shape.x), poison(shape.x)
    ops.col2im(device, whole, dx, shape)
    for first in range(0, 5, count):
        images = min(count, 5 - first)
        col = poison((12, images * plane))
        ops.im2col(device, x, col, shape, first)
        np.testing.assert_array_equal(col, whole[:, first * plane : (first + images) * plane])
        ops.col2im(device, col, chunked, shape, first)
        assert np.isnan(chunked[:, first + images :]).all()  # the other images are not touched
    assert chunked.tobytes() == dx.tobytes()


@pytest.mark.parametrize("shape", [ConvShape(3, 4, 70, 45, 1, 3, 3), ConvShape(2, 4, 70, 45, 1, 3, 5, (1, 2), (1, 1))])
def test_equal_bytes_whatever_the_threads(rng, poison, shape):
    col, found = rng.standard_normal((shape.rows, shape.columns)).astype(F), set()
    for threads in (1, 2, 2, 3):
        dx = poison(shape.x)
        ops.col2im(HostDevice(threads=threads), col, dx, shape)
        found.add(dx.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("shape", [ConvShape(1, 2, 3, 1700, 1, 2, 3, (1, 1), (1, 1)),
                                   ConvShape(1, 1, 2, 2500, 1, 1, 4, (1, 3), (0, 2))])
def test_lines_longer_than_a_run(fast, rng, poison, shape):
    check(fast, shape, rng, poison)


@pytest.mark.parametrize("threads", [1, 2])
def test_columns_larger_than_the_caches(rng, poison, threads):
    shape = ConvShape(5, 3, 251, 263, 1, 3, 3, (1, 1), (2, 1))
    x, col = rng.standard_normal(shape.x).astype(F), poison((shape.rows, shape.columns))
    assert col.nbytes > 2**25
    ops.im2col(HostDevice(threads=threads), x, col, shape)
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (1, 1)))
    for row, (c, r, s) in enumerate(np.ndindex(5, 3, 3)):
        np.testing.assert_array_equal(col[row], padded[c, :, r : r + shape.P, s : s + shape.Q].ravel())


def test_no_images_no_launch(device, forbid_launch):
    forbid_launch()
    shape = ConvShape(2, 0, 5, 9, 1, 3, 2)
    x, col = np.empty(shape.x, F), np.empty((shape.rows, 0), F)
    ops.im2col(device, x, col, shape)
    ops.col2im(device, col, x, shape)


class Planner:
    """Takes launches down and runs none."""

    def launch(self, family, kernel, work, *args):
        self.work, self.parameters = work, source.signatures(family)[kernel].parameters


def virtual(shape):
    """An array of any size that occupies four bytes."""
    return np.broadcast_to(np.zeros((), F), shape)


def test_more_elements_than_32_bits_hold():
    shape = ConvShape(64, 1311, 32, 32, 1, 5, 5, (1, 1), (2, 2))
    assert shape.rows * shape.columns == 2_147_942_400 > 2**31
    planner = Planner()
    x, col = virtual(shape.x), virtual((shape.rows, shape.columns))
    for op, arrays in ((ops.im2col, (x, col)), (ops.col2im, (col, x))):
        op(planner, *arrays, shape)
        assert planner.work.count >= arrays[1].size
        (blocks, *ones), (threads, *_) = plan_launch(planner.work)
        assert blocks * threads >= planner.work.count and ones == [1, 1]
        assert plan_ranges(planner.work, 2) > 1
        assert {p.ctype for p in planner.parameters if not p.pointer} == {"i64"}


@pytest.mark.parametrize("change", [
    {"stride": (0, 1)}, {"stride": (1, 0)}, {"stride": (1, 2**63 - 1)}, {"pad": (-1, 0)}, {"pad": (0, 2**63 - 1)},
    {"R": 0}, {"S": 0}, {"S": 2**63 - 1}, {"R": 6}, {"N": 2**31}, {"C": 0}, {"N": 2**31 - 1, "H": 2**31 - 1, "W": 9},
])
def test_absurd_extents_are_refused(change):
    extents = {"C": 2, "N": 3, "H": 5, "W": 9, "K": 1, "R": 3, "S": 2} | change
    with pytest.raises(ValueError, match="conv: expected"):
        ConvShape(**extents)


def test_wrong_arguments_are_refused(fast):
    shape = SHAPES[0]
    x, col = np.ones(shape.x, F), np.ones((shape.rows, shape.columns), F)
    for op, arrays in ((ops.im2col, (x, col)), (ops.col2im, (col, x))):
        def with_(fast_x, fast_col, op=op):
            return (fast_x, fast_col) if op is ops.im2col else (fast_col, fast_x)

        with pytest.raises(ValueError, match=r"expected x\(2, 3, 5, 9\), got \(2, 3, 9, 5\)"):
            op(fast, *with_(x.reshape(2, 3, 9, 5), col), shape)
        with pytest.raises(ValueError, match=r"expected col\("):
            op(fast, *with_(x, col[:, 1:]), shape)
        with pytest.raises(ValueError, match="expected images within 0 to 3, got 1 to 4"):
            op(fast, *arrays, shape, 1)
        with pytest.raises(TypeError, match="float32, got float64"):
            op(fast, *with_(x.astype(float), col), shape)
        with pytest.raises(ValueError, match="contiguous"):
            op(fast, *with_(x, np.ones((shape.columns, shape.rows), F).T), shape)
