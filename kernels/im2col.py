"""Columns of a convolution and back (kernels of im2col.cu)."""

from __future__ import annotations

from .conv_shape import ConvShape, expect_shape
from .device import Array, Device, elements


def im2col(device: Device, x: Array, col: Array, shape: ConvShape, first: int = 0) -> None:
    """Write the columns of images first .. first+count-1 of x.

    x (C,N,H,W) float32; col (C*R*S, count*P*Q) float32, every element written; count follows from col.
    Raises ValueError when the shapes do not belong together.
    Source: Chellapilla et al. 2006; Oyama et al. 2016, eq. (5).
    """
    count = _images(x, col, shape, first)
    device.launch("im2col", "im2col", elements(col.size), x, col, *_extents(shape), first, count)


def col2im(device: Device, col: Array, dx: Array, shape: ConvShape, first: int = 0) -> None:
    """Sum columns into the images first .. first+count-1 of dx, each element a gather in fixed order.

    col (C*R*S, count*P*Q) float32; dx (C,N,H,W) float32, written for those images only.
    Raises ValueError when the shapes do not belong together.
    """
    count = _images(dx, col, shape, first)
    items = -(-(shape.W + shape.pad[1]) // shape.stride[1])  # of a line; each stands for `stride` elements
    work = elements(shape.C * count * shape.H * items)
    device.launch("im2col", "col2im", work, col, dx, *_extents(shape), first, count)


def _images(x: Array, col: Array, shape: ConvShape, first: int) -> int:
    plane = shape.P * shape.Q
    if col.ndim != 2 or col.shape[0] != shape.rows or col.shape[1] % plane:
        raise ValueError(f"im2col: expected col({shape.rows}, images*{plane}), got {tuple(col.shape)}")
    count = col.shape[1] // plane
    expect_shape("im2col", x=(x.shape, shape.x))
    if not 0 <= first <= shape.N - count:
        raise ValueError(f"im2col: expected images within 0 to {shape.N}, got {first} to {first + count}")
    return count


def _extents(shape: ConvShape) -> tuple[int, ...]:
    return (shape.C, shape.N, shape.H, shape.W, shape.R, shape.S, shape.P, shape.Q, *shape.stride, *shape.pad)
