"""The pieces of the loops on a machine: a gradient as the sum of its launches, and every step around it.

Source: Oyama et al. 2016, eqs. (4) to (6) and the table of terms; docs/model.md marks what is reconstructed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ..engine.layers import NetSpec
from ..kernels.device import Device
from .loops import Pieces
from .machine import CROWDED, PER_PARAMETER, PER_PIXEL, Linear, Machine, net_key
from .work import Call, GradientWork

Array = np.ndarray
PIECE_OF_STEP = {"load_image": "load", "deform_image": "deform", "compute_update_val": "update_val",
                 "fetch_weights": "fetch", "update_gradient": "deposit", "take_gradient": "take",
                 "sum_gradient": "add", "clear_gradient": "clear", "update_old_weights": "old",
                 "add_momentum": "momentum_add", "update_momentum": "momentum", "update_weights": "publish"}
GROUP_OF_PIECE = {"compute": "gradient", "load": "images", "deform": "images", "fetch": "copies",
                  "update_val": "copies", "deposit": "copies", "reduce": "allreduce"}  # all others: "update"
SLICED = ("update_old_weights", "add_momentum", "update_momentum")


@dataclass(frozen=True, eq=False)
class GradientTime:
    """Seconds of T_ComputeGradient by constant ("kernels.im2col", "gemm.sgemm.nt") and in all, and its launches.

    Arrays have the shape of the sub-batches asked for; outside: constant -> how many of its calls lie off the grid.
    Source: Oyama et al. 2016, eq. (4).
    """

    by_constant: dict[str, Array]
    total: Array
    launches: Array
    outside: dict[str, int]


def gradient_time(spec: NetSpec, machine: Machine, subbatch: Any) -> GradientTime:
    """T_ComputeGradient for each sub-batch of an array, nothing else running on the host.

    Raises: UsageError naming a constant that the machine lacks. Source: Oyama et al. 2016, eqs. (4) to (6).
    """
    work = GradientWork(spec, subbatch, machine.conv, absent(machine), machine.device.workspace_bytes)
    by_constant: dict[str, Array] = {}
    outside: dict[str, int] = {}
    launches = np.zeros(work.samples.shape)
    for part in work.parts:
        timed = [[_call_time(machine, call) for call in way] for way in part]
        chosen = np.argmin([sum((seconds for seconds, _ in way), np.zeros(work.samples.shape)) for way in timed],
                           axis=0)
        for number, (way, times) in enumerate(zip(part, timed, strict=True)):
            for call, (seconds, off) in zip(way, times, strict=True):
                name = _constant(machine, call)
                launches = launches + np.where(chosen == number, call.times, 0.0)
                by_constant[name] = by_constant.get(name, 0.0) + np.where(chosen == number, seconds, 0.0)
                outside[name] = outside.get(name, 0) + bool(np.any(off & (chosen == number)))
    total = np.asarray(sum(by_constant.values()))
    return GradientTime(by_constant, total, launches, {name: count for name, count in outside.items() if count})


def _constant(machine: Machine, call: Call) -> str:
    """The machine's field that a call takes its time from."""
    name = machine.gemm_path(call.name) if call.group == "gemm" else call.name
    return f"{call.group}.{name}"


def _call_time(machine: Machine, call: Call) -> tuple[Array, Array]:
    """Seconds of all launches of a call, and where a size lies off the measured grid (bool)."""
    if call.group == "gemm":
        seconds, off = machine.gemm[machine.gemm_path(call.name)].time(*call.sizes)
        return call.times * seconds, off & (call.times > 0)
    seconds = call.times * machine.kernel(call.name).time(call.sizes[0], call.rows)
    return seconds, np.zeros(seconds.shape, dtype=bool)


@dataclass(frozen=True)
class _AbsentDevice:
    """A device that is not here: all that planning asks of one."""

    name: str
    kind: str
    threads: int
    mode: str = "fast"

    def describe(self) -> str:
        return self.name


def absent(machine: Machine) -> Device:
    """The machine's device, to plan for."""
    return cast(Device, _AbsentDevice(machine.device.name, machine.device.kind, machine.threads))


def pieces_of(spec: NetSpec, machine: Machine, nodes: Any, subbatch: Any, gradient: GradientTime,
              busy: float) -> Pieces:
    """The pieces of both loops. nodes, subbatch: numbers or arrays that broadcast together.

    gradient: as gradient_time has it for these sub-batches; busy: devices on one host, which hold each other up.
    """
    alone = _pieces_alone(spec, machine, nodes, subbatch) | {"compute": gradient.total}
    calls = {"compute": gradient.launches, "deform": np.asarray(subbatch), "load": 0, "publish": 0,
             "reduce": 1 + np.log2(nodes)}
    crowds, pieces = crowds_of(spec, machine, busy), {}
    for name, seconds in alone.items():
        crowd = crowds[group_of(name)]
        pieces[name] = crowd.alpha * seconds + crowd.beta * calls.get(name, 1)
    return Pieces(**pieces)


def crowds_of(spec: NetSpec, machine: Machine, busy: float) -> dict[str, Linear]:
    """What others on the host make of each group of pieces."""
    return {group: machine.crowding(net_key(spec), group, busy) for group in CROWDED}


def group_of(piece: str) -> str:
    """The group of CROWDED that a piece belongs to."""
    return GROUP_OF_PIECE.get(piece, "update")


def _pieces_alone(spec: NetSpec, machine: Machine, nodes: Any, subbatch: Any) -> dict[str, Any]:
    """Seconds of each piece but the gradient where nobody else is busy."""
    parameters, pixels = spec.parameter_count, math.prod(spec.in_shape) * np.asarray(subbatch)
    alone: dict[str, Any] = {"reduce": machine.allreduce.time(nodes, parameters)}
    for name in PER_PIXEL:
        alone[PIECE_OF_STEP[name]] = machine.steps[name].time(pixels)
    for name in (*PER_PARAMETER, "take_gradient", "clear_gradient"):
        share = parameters / nodes if name in SLICED else parameters
        alone[PIECE_OF_STEP[name]] = machine.steps[name].time(share)
    return alone
