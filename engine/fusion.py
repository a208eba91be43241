"""From layers to stages: what runs together, and which activations must be kept for the backward pass.

A convolution takes the ReLU and the plain max-pool behind it into one stage: the activation before the pool is never
kept, and the gradient goes back through pool and ReLU inside the convolution op. A dense layer takes its ReLU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from ..kernels.host_gemm import POOL_LIMIT
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
    relu: bool = False  # the stage ends with max(y, 0)
    pool: int = 1  # a conv stage ends with a pool x pool maximum at stride pool
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
        if last and (joined := _joined(last, placed)):
            stages[-1] = joined
            continue
        if isinstance(placed.layer, Dense) and placed.in_shape[1:] != (1, 1):
            flat = (math.prod(placed.in_shape), 1, 1)
            stages.append(Stage(f"flatten{placed.name[2:]}", "flatten", placed.layer, placed.in_shape, flat))
        in_shape = stages[-1].out_shape if stages else placed.in_shape
        kind = _KINDS.get(type(placed.layer), "loss")
        stages.append(Stage(placed.name, kind, placed.layer, in_shape, placed.out_shape))
    followers = [*stages[1:], None]
    return [replace(s, keeps_output=_keeps_output(s, after)) for s, after in zip(stages, followers, strict=True)]


def _joined(last: Stage, placed: Placed) -> Stage | None:
    """`last` with the layer behind it taken in, or None when that is not possible."""
    layer, open_end = placed.layer, last.pool == 1
    if isinstance(layer, ReLU) and last.kind in ("conv", "dense") and not last.relu and open_end:
        return replace(last, relu=True)
    if isinstance(layer, MaxPool2D) and last.kind == "conv" and open_end:
        pool = layer.window[0]
        if layer == MaxPool2D((pool, pool), (pool, pool)) and 1 < pool <= POOL_LIMIT:
            return replace(last, pool=pool, out_shape=placed.out_shape)
    return None


def _keeps_output(stage: Stage, after: Stage | None) -> bool:
    """Whether the backward pass reads the stage's output: by itself (masks), or as the input of the stage behind."""
    reads_own = stage.kind in ("relu", "sigmoid") or stage.relu
    return reads_own or (after is not None and after.kind in ("conv", "dense"))


def scratch_sizes(stages: list[Stage]) -> tuple[int, int]:
    """Elements per sample of the two scratch buffers that stages take in turn.

    They hold outputs that are not kept and, in the backward pass, the gradients: stage i writes its output to, and
    finds the gradient of its output in, buffer i % 2. The loss itself has no output.
    """
    sizes = [stage.out_size for stage in stages[:-1]]
    return max(sizes[0::2], default=0), max(sizes[1::2], default=0)
