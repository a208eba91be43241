"""From layers to stages: what runs together, and which activations must be kept for the backward pass.

Convolution and dense layers take the ReLU behind them into their own output (in place). Where a max-pool follows such a
convolution, the pool's backward applies the ReLU mask from its own, smaller output, so that the activation before the
pool need not be kept at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from .layers import Conv2D, Dense, Dropout, Layer, MaxPool2D, NetSpec, Placed, ReLU, Shape, Sigmoid

Kind = Literal["conv", "pool", "flatten", "dense", "relu", "sigmoid", "dropout", "loss"]
_KINDS: dict[type, Kind] = {Conv2D: "conv", MaxPool2D: "pool", Dense: "dense", ReLU: "relu", Sigmoid: "sigmoid",
                            Dropout: "dropout"}


@dataclass(frozen=True)
class Stage:
    """One step of the forward pass and its mirror in the backward pass; shapes are per sample (C, H, W)."""

    name: str
    kind: Kind
    layer: Layer
    in_shape: Shape
    out_shape: Shape
    relu: bool = False  # the stage ends with max(y, 0) in place
    relu_in_pool: bool = False  # of a conv: the pool behind masks the gradient; of a pool: it does so
    keeps_output: bool = True

    @property
    def out_size(self) -> int:
        """Elements of the output of one sample."""
        return math.prod(self.out_shape)


def fuse(spec: NetSpec) -> list[Stage]:
    """Stages of a net in forward order; the last one is the loss."""
    stages: list[Stage] = []
    for placed in spec.placed:
        last = stages[-1] if stages else None
        if isinstance(placed.layer, ReLU) and last and last.kind in ("conv", "dense") and not last.relu:
            stages[-1] = replace(last, relu=True)
            continue
        if isinstance(placed.layer, Dense) and placed.in_shape[1:] != (1, 1):
            flat = (math.prod(placed.in_shape), 1, 1)
            stages.append(Stage(f"flatten{placed.name[2:]}", "flatten", placed.layer, placed.in_shape, flat))
        stages.append(_stage(placed, stages))
        if placed.layer is not spec.layers[-1] and stages[-1].kind == "pool" and last and last.kind == "conv" and last.relu:
            stages[-2:] = [replace(last, relu_in_pool=True), replace(stages[-1], relu_in_pool=True)]
    return [replace(s, keeps_output=_keeps_output(s, after)) for s, after in zip(stages, [*stages[1:], None], strict=True)]


def _stage(placed: Placed, before: list[Stage]) -> Stage:
    in_shape = before[-1].out_shape if before else placed.in_shape
    return Stage(placed.name, _KINDS.get(type(placed.layer), "loss"), placed.layer, in_shape, placed.out_shape)


def _keeps_output(stage: Stage, after: Stage | None) -> bool:
    """Whether the backward pass reads the stage's output: by itself (masks), or as the input of the stage behind."""
    reads_own = stage.kind in ("relu", "sigmoid") or (stage.relu and not stage.relu_in_pool) or (
        stage.kind == "pool" and stage.relu_in_pool)
    return reads_own or (after is not None and after.kind in ("conv", "dense"))


def scratch_sizes(stages: list[Stage]) -> tuple[int, int]:
    """Elements per sample of the two scratch buffers that stages take in turn.

    They hold outputs that are not kept and, in the backward pass, the gradients: stage i writes its output to, and finds
    the gradient of its output in, buffer i % 2. The loss itself has no output.
    """
    sizes = [stage.out_size for stage in stages[:-1]]
    return max(sizes[0::2], default=0), max(sizes[1::2], default=0)
