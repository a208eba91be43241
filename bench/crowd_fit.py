"""The model's contention from runs of the loops: each group of pieces there, against its pieces alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .crowd import Loops, Trial
from .fit import fit_two, relative_spread
from .loops import Pieces, barrier_seconds, sum_seconds, wait
from .machine import ANY, CROWDED, Linear, Machine, net_key
from .pieces import gradient_time, pieces_of

Contention = dict[str, dict[float, dict[str, Linear]]]  # of a net, or of ANY from all nets; by busy devices; by group
COPIES = ("lock_weights", "fetch_weights", "compute_update_val", "lock_gradient", "update_gradient")
UPDATES = ("lock_gradient", "sum_gradient", "update_old_weights", "add_momentum", "update_momentum", "lock_weights",
           "update_weights")
UNLIKE = 1.5  # times as many calls a second that some measurements must have
ALONE, CALLS = Linear(1.0), Linear(0.0, 1.0)  # contention that leaves seconds alone, or counts calls instead


@dataclass(frozen=True)
class Sight:
    """What the loops of a trial took on so many ranks of a host, with so many devices each."""

    ranks: int
    devices: int
    trial: Trial
    loops: Loops


def fit_crowd(seen: Sequence[tuple[float, float, float]]) -> Linear:
    """alpha * (seconds alone) + beta * calls through (seconds alone, calls, seconds) > 0, neither negative.

    Measurements that are too few or too much alike cannot tell the two apart: all is alpha then.
    """
    alone, calls, seconds = np.array(seen).T
    share = calls / alone
    if len(seen) < 3 or share.max() < UNLIKE * share.min():
        return Linear(float(np.median(seconds / alone)), 0.0, relative_spread(seconds / alone))
    return fit_two(alone, calls, seconds)


def fit_gradients(machine: Machine, seen: Sequence[tuple[Trial, float]]) -> Contention:
    """Machine.contention of one device alone, from (trial, seconds of its gradient)."""
    rows = [(net_key(trial.spec), trial, seconds) for trial, seconds in seen]
    found: Contention = {}
    for net in (ANY, *dict.fromkeys(net for net, _, _ in rows)):
        times = [(gradient_time(trial.spec, machine, trial.subbatch), seconds) for name, trial, seconds in rows
                 if net in (ANY, name)]
        found[net] = {1.0: {"gradient": fit_crowd([(float(kernels.total), float(kernels.launches), seconds)
                                                   for kernels, seconds in times])}}
    return found


def fit_contention(machine: Machine, sights: Sequence[Sight]) -> Contention:
    """Machine.contention of the loops. machine: with all other constants."""
    nets = dict.fromkeys(net_key(sight.trial.spec) for sight in sights)
    return {net: _fit_groups(machine, [sight for sight in sights if net in (ANY, net_key(sight.trial.spec))])
            for net in (ANY, *nets)}


def _fit_groups(machine: Machine, sights: Sequence[Sight]) -> dict[float, dict[str, Linear]]:
    """By busy devices and group."""
    found: dict[float, list[dict[str, tuple[float, float, float]]]] = {}
    for sight in sights:
        found.setdefault(machine.busy(sight.devices, sight.ranks), []).append(_compared(machine, sight))
    return {busy: {group: fit_crowd([row[group] for row in rows]) for group in CROWDED}
            for busy, rows in found.items()}


def _compared(machine: Machine, sight: Sight) -> dict[str, tuple[float, float, float]]:
    """(seconds alone, calls, seconds in the loops) of each group, both loops' own mean times taken as given."""
    alone, calls = (_sums(_pieces(machine, sight, crowd), sight) for crowd in (ALONE, CALLS))
    seen = _seen(sight)
    return {group: (alone[group], calls[group], seen[group]) for group in CROWDED}


def _pieces(machine: Machine, sight: Sight, crowd: Linear) -> Pieces:
    spec, n = sight.trial.spec, sight.trial.subbatch
    same = replace(machine, contention={ANY: {1.0: dict.fromkeys(CROWDED, crowd)}})
    return pieces_of(spec, same, sight.ranks, n, gradient_time(spec, machine, n), 1.0)


def _sums(pieces: Pieces, sight: Sight) -> dict[str, float]:
    """Each group's part of a turn."""
    loops = sight.loops
    full, fetched = min(loops.t_update / loops.t_gpu, 1.0), min(loops.t_gpu / loops.t_update, 1.0)
    sums = {"gradient": pieces.compute, "images": pieces.load + pieces.deform,
            "copies": fetched * pieces.fetch + pieces.update_val + pieces.deposit,
            "update": sum_seconds(pieces, sight.devices, full, (1 - full) ** sight.devices) + pieces.old
            + pieces.momentum_add + pieces.momentum + pieces.publish,
            "allreduce": pieces.reduce}
    return {group: float(seconds) for group, seconds in sums.items()}


def _seen(sight: Sight) -> dict[str, float]:
    """Each group's part of a turn in the loops; with it what locks took beyond what the model says of them."""
    gpu, update, devices = sight.loops.worker, sight.loops.update, sight.devices
    t_gpu, t_update = sight.loops.t_gpu, sight.loops.t_update
    full = min(t_update / t_gpu, 1.0)
    told_gpu = (devices - 1) * wait(gpu["fetch_weights"], t_gpu) + wait(update["sum_gradient"] / devices, t_update)
    told_update = devices * (wait(gpu["update_gradient"], t_gpu) + wait(gpu["fetch_weights"], t_gpu))
    each = update["sum_gradient"] / (devices * full)
    told_barrier = float(barrier_seconds(devices, sight.ranks, full, each, each))
    return {"gradient": gpu["compute_gradient"], "images": gpu["load_image"] + gpu["deform_image"],
            "copies": sum(gpu[name] for name in COPIES) - told_gpu,
            "update": sum(update[name] for name in UPDATES) - told_update,
            "allreduce": update["barrier"] + update["allreduce"] - told_barrier}
