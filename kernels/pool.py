"""Max-pooling with any window, stride and pad (kernels of pool.cu)."""

from __future__ import annotations

import numpy as np

from .conv_shape import SIZE_LIMIT, Pair, expect_shape, output_extent, pair
from .device import Array, Device, elements

BYTE_WINDOW = 256  # the largest window whose indices fit one byte


def pooled_shape(x: tuple[int, ...], window: Pair, stride: Pair,
                 pad: Pair = (0, 0)) -> tuple[int, int, int, int]:
    """Shape (C,N,P,Q) of the pool of x(C,N,H,W), by the floor rule.

    Raises ValueError when x has not 4 dimensions, window, stride or pad is no pair of whole numbers, the window does
    not fit, or stride or pad is out of range; pad must be less than the window, or a window would hold nothing.
    """
    window, stride, pad = _pairs(window, stride, pad)
    if len(x) != 4:
        raise ValueError(f"max_pool: expected x(C,N,H,W), got shape {tuple(x)}")
    P = output_extent("max_pool", "height", x[2], window[0], stride[0], pad[0])
    Q = output_extent("max_pool", "width", x[3], window[1], stride[1], pad[1])
    if window[0] * window[1] > SIZE_LIMIT:
        raise ValueError(f"max_pool: expected a window of at most {SIZE_LIMIT} elements, got {tuple(window)}")
    if pad[0] >= window[0] or pad[1] >= window[1]:
        raise ValueError(f"max_pool: expected pad less than the window {tuple(window)}, got {tuple(pad)}")
    return x[0], x[1], P, Q


def arg_dtype(window: Pair) -> np.dtype:
    """Type of the indices inside a window: uint8 up to 256 elements, else int32."""
    window = pair("max_pool", "window", window)
    return np.dtype(np.uint8 if window[0] * window[1] <= BYTE_WINDOW else np.int32)


def max_pool(device: Device, x: Array, y: Array, arg: Array, window: Pair, stride: Pair,
             pad: Pair = (0, 0)) -> None:
    """y = maximum of each window, NaN if any is; arg = index r*S + s of the first maximum in its window.

    x (C,N,H,W) float32; y (C,N,P,Q) float32; arg (C,N,P,Q) of arg_dtype(window). Raises ValueError when the
    shapes do not belong together (see pooled_shape), TypeError when arg has another dtype.
    """
    window, stride, pad = _pairs(window, stride, pad)
    shape = _checked("max_pool", x, y, arg, window, stride, pad)
    if _is_2x2(window, stride, pad):
        device.launch("pool", "max_pool_2x2", elements(y.size), x, y, arg, *shape)
        return
    extents = (*shape, *window, *stride, *pad)
    device.launch("pool", f"max_pool_{_suffix(arg)}", elements(y.size), x, y, arg, *extents)


def max_pool_backward(device: Device, dy: Array, arg: Array, dx: Array, window: Pair, stride: Pair,
                      pad: Pair = (0, 0), relu_of: Array | None = None) -> None:
    """dx = for each element the sum of dy of the windows whose first maximum it is.

    dy (C,N,P,Q) float32; arg (C,N,P,Q) as max_pool left it; dx (C,N,H,W) float32, every element written;
    relu_of: y (C,N,P,Q) of max_pool where a ReLU stands before the pool, whose gradient is then taken in the
    same pass (dy counts where y > 0). Raises as max_pool does.
    """
    window, stride, pad = _pairs(window, stride, pad)
    shape = _checked("max_pool_backward", dx, dy, arg, window, stride, pad)
    if relu_of is not None:
        expect_shape("max_pool_backward", relu_of=(relu_of.shape, dy.shape))
    pooled, relu = (dy, 0) if relu_of is None else (relu_of, 1)
    if _is_2x2(window, stride, pad):
        device.launch("pool", "max_pool_2x2_backward", elements(dy.size), dy, arg, pooled, dx, relu, *shape)
        return
    items = -(-(dx.shape[3] + pad[1]) // stride[1])  # of a line; each stands for `stride` elements
    work, extents = elements(shape[0] * shape[1] * items), (*shape, *window, *stride, *pad)
    device.launch("pool", f"max_pool_backward_{_suffix(arg)}", work, dy, arg, pooled, dx, relu, *extents)


def _pairs(window: Pair, stride: Pair, pad: Pair) -> tuple[Pair, Pair, Pair]:
    return pair("max_pool", "window", window), pair("max_pool", "stride", stride), pair("max_pool", "pad", pad)


def _checked(op: str, x: Array, y: Array, arg: Array, window: Pair, stride: Pair,
             pad: Pair) -> tuple[int, ...]:
    C, N, P, Q = pooled_shape(x.shape, window, stride, pad)
    expect_shape(op, y=(y.shape, (C, N, P, Q)), arg=(arg.shape, (C, N, P, Q)))
    if arg.dtype != arg_dtype(window):
        raise TypeError(f"{op}: expected arg as {arg_dtype(window)} for {tuple(window)}, got {arg.dtype}")
    return C * N, x.shape[2], x.shape[3], P, Q


def _is_2x2(window: Pair, stride: Pair, pad: Pair) -> bool:
    return tuple(window) == tuple(stride) == (2, 2) and tuple(pad) == (0, 0)


def _suffix(arg: Array) -> str:
    return "byte" if arg.dtype == np.uint8 else "int"
