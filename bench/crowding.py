"""How much longer everything takes because of who else is busy on a host: the model's factors for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from ..distributed.layout import own_cores
from ..distributed.ranks import Comm
from ..distributed.together import together
from ..engine.errors import UsageError
from ..engine.layers import NetSpec
from ..engine.nets import build
from ..kernels.device import Device, open_device
from ..kernels.host import usable_cores
from .crowd import Loops, Trial, gradients_at_once, run_loops
from .fit import relative_spread, spread
from .machine import Allreduce, Machine
from .model import gradient_time, pieces_of
from .ranks_gauge import fitted_allreduce, group_sizes

GRADIENTS = 20  # of each trial
FIRST_TURNS, LEAST_TURNS, MOST_TURNS = 10, 25, 1000  # of each worker
SMALL = 1 << 21  # parameters and values of an image up to which the loops are run with a net itself
STAND_IN = ("cnn-a", 28, 4)  # net, pixels and sub-batch that stand in for larger ones


@dataclass
class Crowd:
    """contention, jitter: as Machine has them; off: (time by the model) / (time) - 1 of whole gradients, contention
    taken into account; allreduce: where it was measured in the running loops."""

    contention: dict[float, float]
    jitter: float
    off: list[float]
    allreduce: Allreduce | None = None


@dataclass
class _Seen:
    """What the loops gave: (ranks, parameters, seconds) of meetings, and factors by busy devices."""

    meetings: list[tuple[int, int, float]] = field(default_factory=list)
    factors: dict[float, list[float]] = field(default_factory=dict)

    def add(self, ranks: int, used: int, trial: Trial, loops: Loops, factor: float, machine: Machine | None) -> None:
        """Take down a run of the loops; factor: how many times longer a turn of its GPU threads took."""
        if machine:
            self.factors.setdefault(machine.busy(used, ranks), []).append(factor)
            self.meetings.append((ranks, trial.spec.parameter_count, loops.meeting / factor))


def check_unbound(comm: Comm) -> None:
    """Raises: UsageError where a launcher gave each rank cores of its own; a collective."""
    cores = own_cores(comm)

    def check() -> None:
        if cores * comm.local_size > usable_cores() + 0.01:
            raise UsageError("calibrate: expected ranks that share the cores of their host (mpirun --bind-to none), "
                             f"got ranks with {cores:g} of their own")

    together(comm, check)


def measure_crowd(comm: Comm, device: Device, specs: Sequence[NetSpec], subbatches: Sequence[int],
                  machine: Machine | None, conv: str, seconds: float) -> Crowd:
    """Whole gradients against the sum of their kernels; on host devices the running loops against the sum of theirs.

    machine: on rank 0 with all constants but these. About `seconds` for each half. A collective; only rank 0 has the
    result.
    """
    crowd = Crowd({}, 0.0, [])
    if machine:
        crowd = _gradients(device, specs, subbatches, machine, conv, seconds)
    if device.kind == "host":
        seen = _loops(comm, device, _trials(specs, subbatches, conv), machine, seconds)
        if machine:
            crowd.contention |= {busy: crowd.contention[1.0] * float(np.median(found))
                                 for busy, found in seen.factors.items()}
            nodes, counts, times = zip(*seen.meetings, strict=True)
            crowd.allreduce = fitted_allreduce(nodes, counts, times)
    return crowd


def _trials(specs: Sequence[NetSpec], subbatches: Sequence[int], conv: str) -> list[Trial]:
    """The small nets with a sub-batch from the middle, or a stand-in."""
    middle = spread(subbatches, 3)
    small = [spec for spec in specs if max(spec.parameter_count, math.prod(spec.in_shape)) <= SMALL]
    net, pixels, subbatch = STAND_IN
    trials = [Trial(spec, middle[len(middle) // 2], conv) for spec in small]
    return trials or [Trial(build(net, pixels), subbatch, conv)]


def _gradients(device: Device, specs: Sequence[NetSpec], subbatches: Sequence[int], machine: Machine, conv: str,
               seconds: float) -> Crowd:
    """One device alone, shortest gradients first, as many trials as there is time for."""
    trials = sorted(((float(gradient_time(spec, machine, n).total), Trial(spec, n, conv)) for spec in specs
                     for n in spread(subbatches, 3)), key=lambda pair: pair[0])
    ratios: list[float] = []
    jitters: list[float] = []
    left = seconds
    for modelled, trial in trials:
        left -= 2 * GRADIENTS * modelled
        if ratios and left < 0:
            break
        times = gradients_at_once([device], trial, GRADIENTS if left > 0 else 1)
        ratios.append(float(np.median(times)) / modelled)
        jitters.append(relative_spread(times))
    alone = float(np.median(ratios))
    return Crowd({1.0: alone}, float(np.median(jitters)), [alone / ratio - 1 for ratio in ratios])


def _loops(comm: Comm, device: Device, trials: Sequence[Trial], machine: Machine | None, seconds: float) -> _Seen:
    """The loops of all trials, on one rank and more, with one device each and more; a collective."""
    count = max(1, usable_cores() // device.threads)
    devices = [open_device(f"host:{index}", threads=device.threads) for index in range(count)]
    alone = [_turn_alone(device, trial, machine) if machine else 0.0 for trial in trials]
    sizes = group_sizes(comm.size)
    each, seen = seconds / (len(sizes) * len(devices) * len(trials)), _Seen()
    for size in sizes:
        comm.meet(np.zeros(1))
        group = comm.first(size)
        for used, (trial, turn) in product(range(1, len(devices) + 1), zip(trials, alone, strict=True)):
            if group:
                loops = _run(group, devices[:used], trial, each)
                seen.add(size, used, trial, loops, loops.t_gpu / turn if machine else 1.0, machine)
    return seen


def _turn_alone(device: Device, trial: Trial, machine: Machine) -> float:
    """Seconds of a turn of a GPU thread when nothing else runs."""
    gradient = float(np.median(gradients_at_once([device], trial, GRADIENTS)))
    return float(pieces_of(trial.spec, machine, 1, trial.subbatch, gradient, 1).free_gpu_turn)


def _run(group: Comm, devices: Sequence[Device], trial: Trial, seconds: float) -> Loops:
    first = run_loops(group, devices, trial, FIRST_TURNS)
    return run_loops(group, devices, trial, int(np.clip(seconds / first.t_gpu, LEAST_TURNS, MOST_TURNS)))
