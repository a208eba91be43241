"""Implicit convolution: the same matrix products with the columns formed on the fly, never in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import host_gemm
from .conv_shape import ConvShape
from .conv_tiles import Tiles
from .device import Array, Device

if TYPE_CHECKING:
    from .conv import Algorithm


def implicit(device: Device, shape: ConvShape, limit_bytes: int | None) -> Algorithm:
    """The implicit algorithm of a device. Raises ValueError when the limit or the extents do not suit it."""
    fast = device.kind == "host" and device.mode == "fast"
    return (HostTiles if fast else Tiles)(device, shape, limit_bytes)


PASSES: dict[str, host_gemm.Pass] = {"forward": "forward", "backward_data": "data", "backward_filter": "filter"}


class HostTiles:
    """The register tiles of the host (host_gemm.py). Raises ValueError when `limit_bytes` is too little for them."""

    name = "implicit"

    def __init__(self, device: Device, shape: ConvShape, limit_bytes: int | None) -> None:
        self.device, self.shape = device, shape
        self.bytes = {direction: host_gemm.conv_workspace(name, shape, device.threads)
                      for direction, name in PASSES.items()}
        needed = max(self.bytes.values())
        if limit_bytes is not None and limit_bytes < needed:
            raise ValueError(f"conv: expected a workspace of at least {needed} bytes, got {limit_bytes}")

    def workspace_bytes(self, direction: str) -> int:
        """Bytes for the packed panels of all threads."""
        return self.bytes[direction]

    def describe(self) -> str:
        """One line for people."""
        return f"implicit, packed panels ({max(self.bytes.values()):,} bytes)"

    def forward(self, x: Array, w: Array, b: Array, y: Array, relu: bool, workspace: Array) -> None:
        """y = w * x + b, then ReLU."""
        host_gemm.conv_forward(self.device, x, w, y, self.shape, workspace.view(np.uint8), bias=b, relu=relu)

    def backward_data(self, dy: Array, w: Array, dx: Array, workspace: Array) -> None:
        """dx = gradient to x."""
        host_gemm.conv_backward_data(self.device, dy, w, dx, self.shape, workspace.view(np.uint8))

    def backward_filter(self, x: Array, dy: Array, dw: Array, db: Array, workspace: Array) -> None:
        """dw, db = gradients to w and b."""
        host_gemm.conv_backward_filter(self.device, x, dy, dw, self.shape, workspace.view(np.uint8), db=db)
