"""Sums and maxima of the rows and the columns of a matrix (kernels of reduce.cu)."""

from __future__ import annotations

from .conv_shape import expect_shape
from .device import Array, Device, elements, rows


def row_sum(device: Device, x: Array, out: Array) -> None:
    """out[m] = sum of x[m]; 0 where J = 0.

    x (M,J) float32; out (M) float32, every element written. Raises ValueError when the shapes do not belong
    together.
    """
    M, J = _matrix("row_sum", x, out, 0)
    device.launch("reduce", "row_sum", rows(M), x, out, M, J)


def row_max(device: Device, x: Array, out: Array) -> None:
    """out[m] = maximum of x[m], NaN if any is NaN; -inf where J = 0.

    x (M,J) float32; out (M) float32, every element written. Raises ValueError when the shapes do not belong
    together.
    """
    M, J = _matrix("row_max", x, out, 0)
    device.launch("reduce", "row_max", rows(M), x, out, M, J)


def column_sum(device: Device, x: Array, out: Array) -> None:
    """out[j] = sum of x[:, j]; 0 where M = 0.

    x (M,J) float32; out (J) float32, every element written. Raises ValueError when the shapes do not belong
    together.
    """
    M, J = _matrix("column_sum", x, out, 1)
    device.launch("reduce", "column_sum", elements(J), x, out, M, J)


def column_max(device: Device, x: Array, out: Array) -> None:
    """out[j] = maximum of x[:, j], NaN if any is NaN; -inf where M = 0.

    x (M,J) float32; out (J) float32, every element written. Raises ValueError when the shapes do not belong
    together.
    """
    M, J = _matrix("column_max", x, out, 1)
    device.launch("reduce", "column_max", elements(J), x, out, M, J)


def _matrix(op: str, x: Array, out: Array, axis: int) -> tuple[int, int]:
    if x.ndim != 2:
        raise ValueError(f"{op}: expected x(M,J), got shape {tuple(x.shape)}")
    expect_shape(op, out=(out.shape, (x.shape[axis],)))
    return x.shape[0], x.shape[1]
