"""How much longer everything takes because of who else is busy on a host: gradients and loops that show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from .crowd import Loops, Trial, gradients_at_once, median_loops, run_loops
from .crowd_fit import Sight, fit_contention, fit_gradients
from .fit import relative_spread, spread
from .machine import Linear, Machine
from .pieces import gradient_time, pieces_of
from .ranks_gauge import group_sizes

GRADIENTS = 20  # of each trial
ROUNDS = 3  # of the runs of the loops: a machine is not as fast at one time as at another
FIRST_TURNS, LEAST_TURNS, MOST_TURNS = 10, 15, 1000  # of each worker
SMALL = 1 << 21  # parameters and values of an image up to which the loops are run with a net itself
STAND_IN = ("cnn-a", 28, (2, 4, 8))  # net, pixels and sub-batches that stand in for larger ones


@dataclass
class Crowd:
    """contention, jitter: as Machine has them; off: (time by the model) / (time) - 1 of whole gradients, contention
    taken into account."""

    contention: dict[str, dict[float, dict[str, Linear]]]
    jitter: float
    off: list[float]


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
    """Whole gradients against their kernels; on host devices the pieces of the running loops against those alone.

    machine: on rank 0 with all constants but these. About `seconds` for each half. A collective; only rank 0 has the
    result.
    """
    crowd = Crowd({}, 0.0, [])
    if machine:
        crowd = _gradients(device, specs, subbatches, machine, conv, seconds)
    if device.kind == "host":
        sights = _loops(comm, device, _trials(specs, subbatches, conv), seconds)
        if machine:
            for net, counts in fit_contention(machine, sights).items():
                crowd.contention[net] = crowd.contention.get(net, {}) | counts
    return crowd


def _trials(specs: Sequence[NetSpec], subbatches: Sequence[int], conv: str) -> list[Trial]:
    """The small nets, or a stand-in, with sub-batches that are spread over all."""
    small = [spec for spec in specs if max(spec.parameter_count, math.prod(spec.in_shape)) <= SMALL]
    net, pixels, few = STAND_IN
    pairs = product(small, spread(subbatches, 3)) if small else product([build(net, pixels)], few)
    return [Trial(spec, n, conv) for spec, n in pairs]


def _gradients(device: Device, specs: Sequence[NetSpec], subbatches: Sequence[int], machine: Machine, conv: str,
               seconds: float) -> Crowd:
    """One device alone, shortest gradients first, as many trials as there is time for."""
    trials = sorted(((gradient_time(spec, machine, n), Trial(spec, n, conv)) for spec in specs
                     for n in spread(subbatches, 3)), key=lambda pair: float(pair[0].total))
    seen: list[tuple[Trial, float]] = []
    jitters: list[float] = []
    left = seconds
    for modelled, trial in trials:
        left -= 2 * GRADIENTS * float(modelled.total)
        if seen and left < 0:
            break
        times = gradients_at_once([device], trial, GRADIENTS if left > 0 else 1)
        seen.append((trial, float(np.median(times))))
        jitters.append(relative_spread(times))
    contention = fit_gradients(machine, seen)
    alone = replace(machine, contention=contention)
    off = [float(pieces_of(trial.spec, alone, 1, trial.subbatch, gradient_time(trial.spec, machine, trial.subbatch),
                           1).compute) / time - 1 for trial, time in seen]
    return Crowd(contention, float(np.median(jitters)), off)


def _loops(comm: Comm, device: Device, trials: Sequence[Trial], seconds: float) -> list[Sight]:
    """The loops of all trials, on one rank and more, with one device each and more, in rounds; a collective."""
    count = max(1, usable_cores() // device.threads)
    devices = [open_device(f"host:{index}", threads=device.threads) for index in range(count)]
    groups = {size: comm.first(size) for size in group_sizes(comm.size)}
    settings = list(product(groups, range(1, count + 1), trials))
    each = seconds / (ROUNDS * len(settings))
    runs: dict[tuple[int, int, Trial], list[Loops]] = {setting: [] for setting in settings}
    for size, used, trial in settings * ROUNDS:
        comm.meet(np.zeros(1))
        if group := groups[size]:
            runs[size, used, trial].append(_run(group, devices[:used], trial, each))
    return [Sight(*setting, median_loops(found)) for setting, found in runs.items() if found]


def _run(group: Comm, devices: Sequence[Device], trial: Trial, seconds: float) -> Loops:
    first = run_loops(group, devices, trial, FIRST_TURNS)
    return run_loops(group, devices, trial, int(np.clip(seconds / first.t_gpu, LEAST_TURNS, MOST_TURNS)))
