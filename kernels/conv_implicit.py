"""The algorithms that store no columns: tiles of conv.cu on cuda and simt, register tiles and Winograd on the host."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from . import host_gemm
from .conv_algorithm import Algorithm, Gradient
from .conv_shape import ConvShape
from .conv_tiles import Tiles
from .device import Array, Device

PASSES: dict[str, host_gemm.Step] = {"forward": "forward", "backward_data": "data", "backward_filter": "filter"}


def implicit(device: Device, shape: ConvShape, limit_bytes: int | None, pool: int) -> Algorithm:
    """The implicit algorithm of a device. Raises ValueError when the limit or the extents do not suit it."""
    maker = HostTiles if _is_fast_host(device) else Tiles
    return maker(device, shape, limit_bytes, pool)


def _is_fast_host(device: Device) -> bool:
    return device.kind == "host" and device.mode == "fast"


class HostTiles:
    """The register tiles of the host (host_gemm.py). Raises ValueError when `limit_bytes` is too little for them."""

    name = "implicit"
    algorithm: host_gemm.Algorithm = "direct"
    fused = True

    def __init__(self, device: Device, shape: ConvShape, limit_bytes: int | None, pool: int) -> None:
        self.device, self.shape, self.pool = device, shape, pool
        self._forward, self._data, self._filter = passes = [
            host_gemm.conv_pass(step, shape, device.threads, pool, self.algorithm) for step in PASSES.values()]
        self.bytes = {direction: made.workspace_bytes for direction, made in zip(PASSES, passes, strict=True)}
        self._bound: dict[str, tuple[tuple[Array | int | None, ...], Callable[[], None]]] = {}
        needed = max(self.bytes.values())
        if limit_bytes is not None and limit_bytes < needed:
            raise ValueError(f"conv: expected a workspace of at least {needed} bytes, got {limit_bytes}")

    def workspace_bytes(self, direction: str) -> int:
        """Bytes for the packed panels of all threads."""
        return self.bytes[direction]

    def describe(self) -> str:
        """One line for people."""
        return f"{self.name}, packed panels ({max(self.bytes.values()):,} bytes)"

    def forward(self, x: Array, w: Array, b: Array, y: Array, relu: bool, workspace: Array, arg: Array | None) -> None:
        """y, arg = pool(ReLU(w * x + b))."""
        self._run(self._forward, workspace, x, w, b, int(relu), y, arg)

    def backward_data(self, gradient: Gradient, w: Array, dx: Array, workspace: Array) -> None:
        """dx = gradient to x."""
        self._run(self._data, workspace, *gradient, w, dx)

    def backward_filter(self, x: Array, gradient: Gradient, dw: Array, db: Array, workspace: Array) -> None:
        """dw, db = gradients to w and b."""
        self._run(self._filter, workspace, x, *gradient, dw, db)

    def _run(self, made: host_gemm.ConvPass, *arguments: Any) -> None:
        """Run a pass; a steady step, on the arrays of the last one, finds its call bound to them."""
        last, call = self._bound.get(made.name, ((), None))
        if call is None or not all(map(operator.is_, last, arguments)):
            call = made.bind(self.device, *arguments)
            self._bound[made.name] = arguments, call
        call()


class Winograd(HostTiles):
    """Winograd's algorithm on the host: 3x3 filters at stride 1. Raises ValueError for any other layer or device.

    An infinite input makes its whole tiles of outputs NaN, where the direct sum keeps them infinite or finite: a run
    that has diverged stops either way, with the same words.
    Source: Lavin and Gray 2016, F(2x2, 3x3).
    """

    name = "winograd"
    algorithm = "winograd"

    def __init__(self, device: Device, shape: ConvShape, limit_bytes: int | None, pool: int) -> None:
        if not _is_fast_host(device) or not host_gemm.winograd_fits(shape, pool):
            filters = f"{shape.R}x{shape.S} filters at stride {shape.stride}"
            raise ValueError(f"conv: winograd expected 3x3 filters at stride (1, 1) on the host, "
                             f"got {filters} with pool {pool} on {device.name}")
        super().__init__(device, shape, limit_bytes, pool)
