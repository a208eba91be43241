"""Shapes of convolution and pooling: the one place where filter, stride, pad and output sizes meet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .device import INDEX_LIMIT

Pair = tuple[int, int]
SIZE_LIMIT = 2**31 - 1  # of one extent, stride or pad


def check_extents(op: str, **values: tuple[int, int, int]) -> None:
    """Check name=(value, least, greatest) extents. Raises ValueError naming the first out of range."""
    for name, (value, least, greatest) in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= greatest:
            raise ValueError(f"{op}: expected {name} from {least} to {greatest}, got {value}")


def pair(op: str, name: str, value: Any) -> Pair:
    """(height, width) as Python's own whole numbers, which do not wrap round. Raises ValueError for anything else."""
    try:
        first, second = value
    except (TypeError, ValueError):
        first = second = None
    if not all(isinstance(part, (int, np.integer)) and not isinstance(part, bool) for part in (first, second)):
        raise ValueError(f"{op}: expected {name} as two whole numbers (height, width), got {value!r}")
    return int(first), int(second)


def output_extent(op: str, axis: str, extent: int, window: int, stride: int, pad: int) -> int:
    """floor((extent + 2 pad - window) / stride) + 1.

    Raises ValueError when the window does not fit or a value is absurd.
    """
    ranges = {"of the window": (window, 1), "stride": (stride, 1), "pad": (pad, 0), "of x": (extent, 1)}
    check_extents(op, **{f"{axis} {what}": (*pair, SIZE_LIMIT) for what, pair in ranges.items()})
    padded = extent + 2 * pad
    if window > padded:
        raise ValueError(f"{op}: expected a window of at most {padded} in {axis} (x plus pad), got {window}")
    return (padded - window) // stride + 1


@dataclass(frozen=True)
class ConvShape:
    """All extents of one convolution: x(C,N,H,W), w(K,C,R,S), y(K,N,P,Q)."""

    C: int
    N: int
    H: int
    W: int
    K: int
    R: int
    S: int
    stride: Pair = (1, 1)
    pad: Pair = (0, 0)

    def __post_init__(self) -> None:
        check_extents("conv", C=(self.C, 1, SIZE_LIMIT), N=(self.N, 0, SIZE_LIMIT), K=(self.K, 1, SIZE_LIMIT))
        if self.rows * self.columns > INDEX_LIMIT:
            size = f"{self.rows} x {self.columns}"
            raise ValueError(f"conv: expected a column matrix within 2^63-1 elements, got {size}")

    @cached_property
    def P(self) -> int:
        """Height of the output."""
        return output_extent("conv", "height", self.H, self.R, self.stride[0], self.pad[0])

    @cached_property
    def Q(self) -> int:
        """Width of the output."""
        return output_extent("conv", "width", self.W, self.S, self.stride[1], self.pad[1])

    @cached_property
    def rows(self) -> int:
        """Rows of the column matrix: C*R*S."""
        return self.C * self.R * self.S

    @cached_property
    def columns(self) -> int:
        """Columns of the column matrix: N*P*Q."""
        return self.N * self.P * self.Q

    @cached_property
    def x(self) -> tuple[int, int, int, int]:
        """Shape of the input."""
        return self.C, self.N, self.H, self.W

    @cached_property
    def w(self) -> tuple[int, int, int, int]:
        """Shape of the filters."""
        return self.K, self.C, self.R, self.S

    @cached_property
    def y(self) -> tuple[int, int, int, int]:
        """Shape of the output."""
        return self.K, self.N, self.P, self.Q

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the forward pass."""
        return self.K * self.rows * self.columns

    @classmethod
    def of(cls, x: tuple[int, ...], w: tuple[int, ...], stride: Pair = (1, 1),
           pad: Pair = (0, 0)) -> ConvShape:
        """Shape from those of x and w. Raises ValueError when they do not belong together."""
        if len(x) != 4 or len(w) != 4 or x[0] != w[1]:
            raise ValueError(f"conv: expected x(C,N,H,W) and w(K,C,R,S) of one C, got {x} and {w}")
        return cls(*x, w[0], *w[2:], stride=pair("conv", "stride", stride), pad=pair("conv", "pad", pad))


def expect_shape(op: str, **pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Check name=(actual, expected) shapes. Raises ValueError naming the first that differs."""
    for name, (actual, expected) in pairs.items():
        if tuple(actual) != tuple(expected):
            raise ValueError(f"{op}: expected {name}{tuple(expected)}, got {tuple(actual)}")
