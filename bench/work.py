"""What one gradient launches: every kernel and GEMM with its sizes, from the stages that the engine runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.fusion import Stage, fuse
from ..engine.layers import Conv2D, NetSpec
from ..kernels.conv_explicit import DEFAULT_LIMIT_BYTES, images_per_chunk
from ..kernels.conv_shape import ConvShape

Array = np.ndarray
SGEMM = {"forward": "sgemm.nn", "backward_filter": "sgemm.nt", "backward_data": "sgemm.tn"}


@dataclass(frozen=True, eq=False)
class Call:
    """One kind of launch in a stage: `times` of a kernel over (elements,), or of a GEMM path with (m, n, k).

    group: "kernels" or "gemm"; name: of the op as `sprint bench kernels` lists it, or of the GEMM path. sizes
    and times: float64 arrays, one number for each sub-batch asked for. An "implicit" path is a whole convolution
    with its bias.
    """

    stage: str
    group: str
    name: str
    sizes: tuple[Array, ...]
    times: Array


Part = list[list[Call]]  # ways to do the same thing, of which the faster one runs


class GradientWork:
    """The parts of one gradient of `spec` in order, for every sub-batch of an array.

    conv: "explicit" (im2col + sgemm), "implicit" (fused) or "auto", the faster for each layer and direction.
    limit_bytes: of the columns of an explicit convolution, None for the engine's default on `device_kind`.
    Source: Oyama et al. 2016, eq. (4) and its table of GEMMs; m and n change places, for our rows are maps.
    """

    def __init__(self, spec: NetSpec, subbatch: Any, conv: str, device_kind: str,
                 limit_bytes: int | None) -> None:
        self.samples = np.asarray(subbatch, dtype=np.float64)
        self.conv, self.limit, self.kind = conv, limit_bytes, device_kind
        stages = fuse(spec)
        self.parts: list[Part] = [part for stage in stages for part in self._forward(stage)]
        for index in reversed(range(len(stages) - 1)):
            self.parts += self._backward(stages[index], to_input=index > 0)

    def _forward(self, stage: Stage) -> list[Part]:
        outputs = stage.out_size * self.samples
        if stage.kind == "conv":
            return [self._convolution(stage, "forward")]
        if stage.kind == "dense":
            return [[[self._dense(stage, "forward"), self._kernel(stage, _bias(stage), outputs)]]]
        if stage.kind == "loss":
            outputs = math.prod(stage.in_shape) * self.samples
        return [[[self._kernel(stage, FORWARD[stage.kind], outputs)]]]

    def _backward(self, stage: Stage, to_input: bool) -> list[Part]:
        outputs = stage.out_size * self.samples
        parts: list[Part] = []
        if stage.kind in ("conv", "dense"):
            if stage.relu and not stage.relu_in_pool:
                parts.append([[self._kernel(stage, "relu_backward", outputs)]])
            directions = ("backward_filter", "backward_data") if to_input else ("backward_filter",)
            for direction in directions:
                parts += [self._product(stage, direction, outputs)]
        elif to_input:
            inputs = math.prod(stage.in_shape) * self.samples
            parts.append([[self._kernel(stage, BACKWARD[stage.kind], inputs)]])
        return parts

    def _product(self, stage: Stage, direction: str, outputs: Array) -> Part:
        if stage.kind == "conv":
            return self._convolution(stage, direction)
        bias = [self._kernel(stage, "row_sum", outputs)] if direction == "backward_filter" else []
        return [[self._dense(stage, direction), *bias]]

    def _kernel(self, stage: Stage, name: str, elements: Array, times: Any = 1.0) -> Call:
        return Call(stage.name, "kernels", name, (elements,), np.broadcast_to(times, elements.shape))

    def _dense(self, stage: Stage, direction: str) -> Call:
        sizes = _sizes(direction, stage.out_size, math.prod(stage.in_shape), self.samples)
        return Call(stage.name, "gemm", SGEMM[direction], sizes, np.ones_like(self.samples))

    def _convolution(self, stage: Stage, direction: str) -> Part:
        """Both algorithms or the one asked for."""
        ways = {"explicit": self._explicit, "implicit": self._implicit}
        return [way(stage, direction) for name, way in ways.items() if self.conv in (name, "auto")]

    def _implicit(self, stage: Stage, direction: str) -> list[Call]:
        shape = _shape(stage, 1)
        if direction == "backward_data":  # a product over the filters that reach each value of the input
            taps = shape.K * shape.R * shape.S
            sizes = _sizes("forward", shape.C, taps, shape.H * shape.W * self.samples)
        else:
            sizes = _sizes(direction, shape.K, shape.rows, shape.columns * self.samples)
        return [Call(stage.name, "gemm", f"implicit.{direction}", sizes, np.ones_like(self.samples))]

    def _explicit(self, stage: Stage, direction: str) -> list[Call]:
        """Chunks of whole images: as many full ones as fit, and one of the rest."""
        shape = _shape(stage, int(self.samples.max()))
        most = images_per_chunk(shape, self.limit, DEFAULT_LIMIT_BYTES[self.kind])
        full, rest = np.divmod(self.samples, most)
        calls: list[Call] = []
        for images, times in ((np.full_like(rest, most), full), (np.maximum(rest, 1), (rest > 0) * 1.0)):
            columns = images * shape.P * shape.Q
            sizes = _sizes(direction, shape.K, shape.rows, columns)
            fold = "col2im" if direction == "backward_data" else "im2col"
            calls += [Call(stage.name, "gemm", SGEMM[direction], sizes, times),
                      self._kernel(stage, fold, shape.rows * columns, times)]
        bias = {"forward": _bias(stage), "backward_filter": "row_sum"}.get(direction)
        return calls + ([self._kernel(stage, bias, stage.out_size * self.samples)] if bias else [])


FORWARD = {"pool": "max_pool", "flatten": "im2col", "relu": "relu", "sigmoid": "sigmoid",
           "dropout": "dropout", "loss": "softmax_cross_entropy"}
BACKWARD = {"pool": "max_pool_backward", "flatten": "col2im", "relu": "relu_backward",
            "sigmoid": "sigmoid_backward", "dropout": "dropout"}


def _bias(stage: Stage) -> str:
    return "bias_relu" if stage.relu else "add_bias"


def _shape(stage: Stage, images: int) -> ConvShape:
    layer = stage.layer
    assert isinstance(layer, Conv2D)
    C, H, W = stage.in_shape
    return ConvShape(C, images, H, W, layer.filters, *layer.window, layer.stride, layer.pad)


def _sizes(direction: str, maps: int, depth: int, points: Array) -> tuple[Array, Array, Array]:
    """(m, n, k) of y = w col, of dw = dy col^T and of dcol = w^T dy."""
    m, k = np.full_like(points, maps), np.full_like(points, depth)
    return {"forward": (m, points, k), "backward_filter": (m, k, points),
            "backward_data": (k, points, m)}[direction]
