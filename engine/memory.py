"""How much memory a training run takes, known before it starts: the same rules by which Network takes it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from ..kernels.device import Device
from ..kernels.pool import arg_dtype
from .fusion import Stage, fuse, scratch_sizes
from .layers import MaxPool2D, NetSpec
from .optim import STATE_BUFFERS
from .params import flat_length
from .stages import plan_conv, plan_dense

FLOAT_BYTES = 4


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one device, by purpose."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int
    images: int

    @property
    def total(self) -> int:
        """The planned peak."""
        return sum(asdict(self).values())


def plan(spec: NetSpec, device: Device, subbatch: int, *, conv_algo: str = "auto",
         workspace_bytes: int | None = None, optimizer: str = "momentum") -> MemoryPlan:
    """Bytes that a Network, its optimiser and its input buffers will take on `device` for `subbatch` samples.

    Raises ValueError when not even one image's columns fit into `workspace_bytes`.
    """
    stages = fuse(spec)
    flat = FLOAT_BYTES * flat_length(spec.parameter_shapes)
    kept = sum(s.out_size for s in stages[:-1] if s.keeps_output)
    activations = FLOAT_BYTES * subbatch * (kept + sum(scratch_sizes(stages)))
    arguments = sum(subbatch * s.out_size * _argument_bytes(s) for s in stages)
    needs = [plan_conv(s, device, subbatch, conv_algo, workspace_bytes).workspace_bytes() for s in stages
             if s.kind == "conv"]
    needs += [plan_dense(s, device, subbatch).workspace_bytes() for s in stages if s.kind == "dense"]
    workspace = max(needs, default=0)
    pixels = math.prod(spec.in_shape)
    images = subbatch * pixels * (FLOAT_BYTES + 1)
    return MemoryPlan(flat, flat, flat * STATE_BUFFERS[optimizer], activations + arguments, workspace, images)


def _argument_bytes(stage: Stage) -> int:
    """Bytes that a stage keeps for each of its outputs to know where in the window the maximum was."""
    if isinstance(stage.layer, MaxPool2D):
        return arg_dtype(stage.layer.window).itemsize
    return 1 if stage.pool > 1 else 0


def largest_subbatch(spec: NetSpec, device: Device, available: int, **options: object) -> int:
    """The largest sub-batch whose plan fits into `available` bytes; 0 when not even one sample does.

    Options are those of plan().
    """
    def fits(n: int) -> bool:
        return plan(spec, device, n, **options).total <= available  # type: ignore[arg-type]

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
