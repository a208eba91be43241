"""Bias: one number a row of y(K,J), added in place; its gradient is the row's sum (bias.cu, reduce.cu)."""

from __future__ import annotations

from . import reduce
from .conv_shape import expect_shape
from .device import Array, Device, elements


def add_bias(device: Device, y: Array, b: Array) -> None:
    """y[k] += b[k] in place.

    y (K, ...) float32, its other axes taken as one; b (K) float32. Raises ValueError when the shapes do not
    belong together.
    """
    K, J = _rows("add_bias", y, b)
    device.launch("bias", "add_bias", elements(y.size), y, b, K, J)


def bias_relu(device: Device, y: Array, b: Array) -> None:
    """y[k] = relu(y[k] + b[k]) in place, in one pass over y.

    y (K, ...) float32; b (K) float32. Raises ValueError when the shapes do not belong together.
    """
    K, J = _rows("bias_relu", y, b)
    device.launch("bias", "bias_relu", elements(y.size), y, b, K, J)


def bias_gradient(device: Device, dy: Array, db: Array) -> None:
    """db[k] = sum of dy[k]; zero where dy has no elements.

    dy (K, ...) float32; db (K) float32, every element written. Raises ValueError when the shapes do not
    belong together.
    """
    K, J = _rows("bias_gradient", dy, db)
    reduce.row_sum(device, dy.reshape(K, J), db)


def _rows(op: str, y: Array, b: Array) -> tuple[int, int]:
    if y.ndim < 1:
        raise ValueError(f"{op}: expected at least 1 dimension, got shape {tuple(y.shape)}")
    expect_shape(op, b=(b.shape, y.shape[:1]))
    K = y.shape[0]
    return K, y.size // K if K else 0
