"""The host's own convolution and sgemm against float64 references written as loops over taps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprint.kernels import host_gemm
from sprint.kernels.conv_shape import ConvShape
from sprint.kernels.host import HostDevice

# Sums of n products in float32, in blocks: (KC + n / KC) * 2^-24 of the sum of their magnitudes; see host_conv_*.cpp.
BLOCK, UNIT = 384, 2.0**-24


def close(actual, expected, magnitude, count, extra=1):
    """Every element of `actual` is within the documented bound; `magnitude` is the same sum over absolute values."""
    bound = (min(count, BLOCK) + count // BLOCK + 4) * UNIT * magnitude * extra + 1e-30
    assert np.isfinite(actual).all()
    worst = np.max(np.abs(actual - expected) - bound, initial=-1)
    assert worst <= 0, f"off the bound by {worst}, largest error {np.max(np.abs(actual - expected), initial=0)}"


def tap_views(shape, padded):
    """(r, s, view (C,N,P,Q)) of every filter tap of a padded x."""
    (sh, sw), P, Q = shape.stride, shape.P, shape.Q
    for r in range(shape.R):
        for s in range(shape.S):
            yield r, s, padded[:, :, r : r + sh * (P - 1) + 1 : sh, s : s + sw * (Q - 1) + 1 : sw]


def pad(x, shape):
    ph, pw = shape.pad
    return np.pad(x.astype(np.float64), ((0, 0), (0, 0), (ph, ph), (pw, pw)))


def reference_forward(x, w, shape):
    y = np.zeros(shape.y)
    for r, s, view in tap_views(shape, pad(x, shape)):
        y += np.einsum("kc,cnpq->knpq", w[:, :, r, s].astype(np.float64), view)
    return y


def reference_data(dy, w, shape):
    dx = pad(np.zeros(shape.x), shape)
    for r, s, view in tap_views(shape, dx):
        view += np.einsum("kc,knpq->cnpq", w[:, :, r, s].astype(np.float64), dy)
    ph, pw = shape.pad
    return dx[:, :, ph : ph + shape.H, pw : pw + shape.W]


def reference_filter(x, dy, shape):
    dw = np.zeros(shape.w)
    for r, s, view in tap_views(shape, pad(x, shape)):
        dw[:, :, r, s] = np.einsum("knpq,cnpq->kc", dy, view)
    return dw


def reference_pool(y, pool):
    """Maximum and number of the first maximum of each window (NaN is a maximum), by loops."""
    K, N, P, Q = y.shape
    top, arg = np.empty((K, N, P // pool, Q // pool)), np.empty((K, N, P // pool, Q // pool), np.uint8)
    for at in np.ndindex(top.shape):
        k, n, u, v = at
        window = y[k, n, u * pool : (u + 1) * pool, v * pool : (v + 1) * pool].ravel()
        arg[at] = np.argmax(window)
        top[at] = window[arg[at]]
    return top, arg


def spread(dy, top, arg, shape, pool):
    """Gradient at the convolution's output of a gradient behind ReLU and pool."""
    full = np.zeros(shape.y)
    for at in np.ndindex(dy.shape):
        k, n, u, v = at
        if top is None or top[at] > 0:
            full[k, n, u * pool + arg[at] // pool, v * pool + arg[at] % pool] = dy[at]
    return full


def poisoned(shape, dtype=np.float32):
    return np.full(shape, np.nan if dtype == np.float32 else 255, dtype)


def workspace(op, shape, device, pool=1):
    """Poisoned, and not aligned to anything."""
    return np.full(host_gemm.conv_workspace(op, shape, device.threads, pool) + 4, 0xFF, np.uint8)[4:]


def random(rng, *shapes):
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def forward(device, x, w, shape, **options):
    pool = options.get("pool", 1)
    y = poisoned(host_gemm.pooled(shape, pool))
    host_gemm.conv_forward(device, x, w, y, shape, workspace("conv_forward", shape, device, pool), **options)
    return y


def backward(device, x, w, dy, shape, **options):
    pool = options.get("pool", 1)
    dx, dw, db = poisoned(shape.x), poisoned(shape.w), poisoned((shape.K,))
    host_gemm.conv_backward_data(device, dy, w, dx, shape, workspace("conv_backward_data", shape, device, pool), **options)
    host_gemm.conv_backward_filter(device, x, dy, dw, shape, workspace("conv_backward_filter", shape, device, pool), db=db,
                                   **options)
    return dx, dw, db


def check_backward(device, x, w, dy, full, shape, **options):
    """`full` is the float64 gradient at the convolution's output that the options make of dy."""
    dx, dw, db = backward(device, x, w, dy, shape, **options)
    taps = shape.R * shape.S
    close(dx, reference_data(full, w, shape), reference_data(abs(full), abs(w), shape), shape.K + taps)
    close(dw, reference_filter(x, full, shape), reference_filter(abs(x), abs(full), shape), shape.columns)
    close(db, full.sum((1, 2, 3)), abs(full).sum((1, 2, 3)), shape.columns)


SHAPES = [
    ConvShape(3, 2, 5, 9, 32, 3, 2, (2, 1), (0, 1)),
    ConvShape(3, 3, 11, 13, 17, 3, 3),
    ConvShape(1, 1, 1, 1, 1, 1, 1),
    ConvShape(1, 1, 3, 3, 1, 3, 3),
    ConvShape(2, 1, 4, 5, 1, 2, 3, (1, 1), (1, 2)),
    ConvShape(13, 5, 7, 3, 29, 5, 3, (1, 1), (2, 1)),
    ConvShape(7, 2, 23, 19, 31, 1, 1),
    ConvShape(5, 3, 17, 8, 14, 2, 5, (3, 2), (1, 3)),
    ConvShape(64, 8, 4, 4, 48, 3, 3),
    ConvShape(130, 2, 6, 6, 33, 3, 3),
    ConvShape(43, 1, 9, 37, 410, 3, 3),
    ConvShape(2, 1, 2, 2, 3, 2, 2, (1, 1), (4, 5)),
    ConvShape(3, 2, 3, 90, 47, 3, 3),
]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolution_equals_the_loops(shape, threads):
    rng, device = np.random.default_rng(7), HostDevice(threads=threads)
    x, w, dy = random(rng, shape.x, shape.w, shape.y)
    close(forward(device, x, w, shape), reference_forward(x, w, shape), reference_forward(abs(x), abs(w), shape), shape.rows)
    check_backward(device, x, w, dy, dy.astype(np.float64), shape)
