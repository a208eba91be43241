"""What every convolution algorithm offers to the op that chooses between them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from .device import Array


class Gradient(NamedTuple):
    """The gradient that comes in: dy, and for algorithms that are `fused` what takes it back through the layer's end.

    dy (K,N,P//pool,Q//pool) float32; y like dy where a ReLU stands (dy counts where y > 0); arg like dy, uint8, where a
    pool stands (dy goes to that element of the window).
    """

    dy: Array
    y: Array | None = None
    arg: Array | None = None


class Algorithm(Protocol):
    """One way to convolve one shape on one device; shapes as in Conv, which has checked them.

    `fused`: pools in its own epilogue, and takes y and arg of a Gradient; the others get neither.
    """

    name: str
    fused: bool

    def workspace_bytes(self, direction: str) -> int: ...
    def describe(self) -> str: ...
    def forward(self, x: Array, w: Array, b: Array, y: Array, relu: bool, workspace: Array,
                arg: Array | None) -> None: ...
    def backward_data(self, gradient: Gradient, w: Array, dx: Array, workspace: Array) -> None: ...
    def backward_filter(self, x: Array, gradient: Gradient, dw: Array, db: Array, workspace: Array) -> None: ...
