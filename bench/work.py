"""What one gradient launches: every kernel and GEMM with its sizes, from the stages that the engine runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.fusion import Stage, fuse
from ..engine.layers import NetSpec
from ..engine.stages import plan_conv, plan_dense
from ..kernels.conv_algorithm import Algorithm
from ..kernels.conv_explicit import Explicit
from ..kernels.conv_shape import ConvShape
from ..kernels.device import Device

Array = np.ndarray
ENDINGS = {"forward": "nn", "backward_filter": "nt", "backward_data": "tn"}
SGEMM = {direction: f"sgemm.{ending}" for direction, ending in ENDINGS.items()}


@dataclass(frozen=True, eq=False)
class Call:
    """One kind of launch in a stage: `times` of a kernel over (elements,), or of a GEMM path with (m, n, k).

    group: "kernels" or "gemm"; name: of the op as `sprint bench kernels` lists it, or of the GEMM path. sizes
    and times: float64 arrays, one number for each sub-batch asked for. An "implicit" path is a whole convolution
    with its bias; "tiles" is the host's own GEMM of dense layers with few columns. rows: of the matrix of columns or
    outputs that a kernel works through row by row, 1 for other calls.
    """

    stage: str
    group: str
    name: str
    sizes: tuple[Array, ...]
    times: Array
    rows: float = 1.0


Part = list[list[Call]]  # ways to do the same thing, of which the faster one runs


class GradientWork:
    """The parts of one gradient of `spec` in order, for every sub-batch of an array.

    conv: algorithm of the convolutions as the engine takes it ("auto": the faster for each layer and direction);
    device: of the kind that it shall run on, only asked what it is; limit_bytes: workspace of a convolution, None
    for the engine's default.
    Source: Oyama et al. 2016, eq. (4) and its table of GEMMs; m and n change places, for our rows are maps.
    """

    def __init__(self, spec: NetSpec, subbatch: Any, conv: str, device: Device, limit_bytes: int | None) -> None:
        self.samples, self.device = np.asarray(subbatch, dtype=np.float64), device
        stages = fuse(spec)
        most = int(self.samples.max())
        self.convs = {s.name: plan_conv(s, device, most, conv, limit_bytes) for s in stages if s.kind == "conv"}
        self.parts: list[Part] = [self._forward(stage) for stage in stages]
        first = 1 if stages[0].kind == "flatten" else 0  # nobody needs the gradient to the images
        for index in reversed(range(first, len(stages) - 1)):
            self.parts += self._backward(stages[index], to_input=index > first)

    def _forward(self, stage: Stage) -> Part:
        outputs = stage.out_size * self.samples
        if stage.kind == "conv":
            return self._convolution(stage, "forward")
        if stage.kind == "dense":
            return [[*self._dense(stage, "forward"), self._kernel(stage, _bias(stage), outputs, rows=stage.out_size)]]
        if stage.kind == "loss":
            outputs = math.prod(stage.in_shape) * self.samples
        return [[self._kernel(stage, FORWARD[stage.kind], outputs, rows=_rows(stage))]]

    def _backward(self, stage: Stage, to_input: bool) -> list[Part]:
        directions = ("backward_filter", "backward_data") if to_input else ("backward_filter",)
        if stage.kind == "conv":
            return [self._ends(stage), *(self._convolution(stage, direction) for direction in directions)]
        if stage.kind == "dense":
            outputs = stage.out_size * self.samples
            ends = [self._kernel(stage, "relu_backward", outputs)] if stage.relu else []
            gemms = [call for direction in directions for call in self._dense(stage, direction)]
            return [[[*ends, *gemms, self._kernel(stage, "row_sum", outputs, rows=stage.out_size)]]]
        inputs = math.prod(stage.in_shape) * self.samples
        return [[[self._kernel(stage, BACKWARD[stage.kind], inputs, rows=_rows(stage))]]] if to_input else []

    def _kernel(self, stage: Stage, name: str, elements: Array, times: Any = 1.0, rows: float = 1.0) -> Call:
        return Call(stage.name, "kernels", name, (elements,), np.broadcast_to(times, elements.shape), rows)

    def _dense(self, stage: Stage, direction: str) -> list[Call]:
        """By BLAS, or for the sub-batches of few columns by the host's own tiles."""
        sizes = _sizes(direction, stage.out_size, math.prod(stage.in_shape), self.samples)
        own = np.vectorize(lambda n: float(plan_dense(stage, self.device, int(n)).own), [float])(self.samples)
        return [Call(stage.name, "gemm", f"{name}.{ENDINGS[direction]}", sizes, times)
                for name, times in (("tiles", own), ("sgemm", 1 - own)) if times.any()]

    def _ends(self, stage: Stage) -> Part:
        """Back through pool and ReLU, where not every algorithm does that itself."""
        conv = self.convs[stage.name]
        if all(algorithm.fused for algorithm in conv.candidates):
            return [[]]
        if stage.pool > 1:
            return [[self._kernel(stage, "max_pool_backward", _outputs(conv.shape) * self.samples)]]
        return [[self._kernel(stage, "relu_backward", stage.out_size * self.samples)] if stage.relu else []]

    def _convolution(self, stage: Stage, direction: str) -> Part:
        """Each algorithm that the engine would choose from."""
        ways: Part = []
        for algorithm in self.convs[stage.name].candidates:
            if isinstance(algorithm, Explicit):
                way = self._explicit(stage, algorithm.images, direction)
            else:
                way = [self._whole(stage, algorithm, direction)]
            if direction == "forward" and stage.pool > 1 and not algorithm.fused:
                way.append(self._kernel(stage, "max_pool", stage.out_size * self.samples))
            ways.append(way)
        return ways

    def _whole(self, stage: Stage, algorithm: Algorithm, direction: str) -> Call:
        """A convolution by one call, bias and whatever the algorithm fuses counted in."""
        shape = self.convs[stage.name].shape
        if direction == "backward_data":  # a product over the filters that reach each value of the input
            sizes = _sizes("forward", shape.C, shape.K * shape.R * shape.S, shape.H * shape.W * self.samples)
        else:
            sizes = _sizes(direction, shape.K, shape.rows, shape.P * shape.Q * self.samples)
        return Call(stage.name, "gemm", f"{algorithm.name}.{direction}", sizes, np.ones_like(self.samples))

    def _explicit(self, stage: Stage, most: int, direction: str) -> list[Call]:
        """Chunks of whole images: as many of `most` images as there are, and one of the rest."""
        shape = self.convs[stage.name].shape
        full, rest = np.divmod(self.samples, most)
        calls: list[Call] = []
        for images, times in ((np.full_like(rest, most), full), (np.maximum(rest, 1), (rest > 0) * 1.0)):
            columns = images * shape.P * shape.Q
            sizes = _sizes(direction, shape.K, shape.rows, columns)
            fold = "col2im" if direction == "backward_data" else "im2col"
            calls += [Call(stage.name, "gemm", SGEMM[direction], sizes, times),
                      self._kernel(stage, fold, shape.rows * columns, times, shape.rows)]
        bias = {"forward": _bias(stage), "backward_filter": "row_sum"}.get(direction)
        return calls + ([self._kernel(stage, bias, _outputs(shape) * self.samples, rows=shape.K)] if bias else [])


FORWARD = {"pool": "max_pool", "flatten": "im2col", "relu": "relu", "sigmoid": "sigmoid",
           "dropout": "dropout", "loss": "softmax_cross_entropy"}
BACKWARD = {"pool": "max_pool_backward", "flatten": "col2im", "relu": "relu_backward",
            "sigmoid": "sigmoid_backward", "dropout": "dropout"}


def _rows(stage: Stage) -> float:
    """Rows of the columns that a flatten makes; other stages have none."""
    return math.prod(stage.in_shape) if stage.kind == "flatten" else 1.0


def _bias(stage: Stage) -> str:
    return "bias_relu" if stage.relu else "add_bias"


def _outputs(shape: ConvShape) -> int:
    """Values of one sample's output, before a pool."""
    return shape.K * shape.P * shape.Q


def _sizes(direction: str, maps: int, depth: int, points: Array) -> tuple[Array, Array, Array]:
    """(m, n, k) of y = w col, of dw = dy col^T and of dcol = w^T dy."""
    m, k = np.full_like(points, maps), np.full_like(points, depth)
    return {"forward": (m, points, k), "backward_filter": (m, k, points),
            "backward_data": (k, points, m)}[direction]
