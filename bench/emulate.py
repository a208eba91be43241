"""Emulate asynchronous training: the real threads, locks and MPI code, at the pace of a machine that is not here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..distributed.options import Options
from ..distributed.ranks import Comm
from ..distributed.sprint import Sprint
from ..distributed.telemetry import UPDATE_TERMS, WORKER_TERMS
from ..distributed.together import together
from ..engine.errors import UsageError
from ..engine.layers import NetSpec
from .loops import Solution, solve
from .machine import Machine
from .model import memory_bytes
from .outcome import Config, Distribution, Outcome
from .pace import EmulatedWorker, UpdatePace
from .pieces import gradient_time, pieces_of
from .simulate import LEAST_UPDATES, Weather, computes, floats

Array = np.ndarray
MOST_UPDATES = 1000  # whose terms the telemetry keeps one by one
TURNS_OF_WARM_UP = 3
LATE = 0.02  # share of the time by which pieces may take longer here before that is said


@dataclass(frozen=True)
class Seen:
    """One rank's view. worker, update: seconds by term of each turn after the warm-up, (turns, terms) float64;
    gradients: in each update after it; staleness: of those gradients; moments: seconds at which updates were
    published; late_s: by which pieces took longer here than on the machine."""

    worker: Array
    update: Array
    gradients: Array
    staleness: Array
    moments: Array
    late_s: float


def emulate(comm: Comm, spec: NetSpec, machine: Machine, config: Config, *, parameters: int, updates: int, seed: int,
            report: Callable[[str, float], None] = lambda what, done: None) -> Outcome:
    """Run a warm-up of three turns of the GPU threads or more and then `updates` updates; a collective of all ranks.

    Every piece of the loops lasts as long as on `machine` for the net's own parameters, but the buffers that are
    copied, summed and reduced hold `parameters` float32 values. config.nodes: the ranks. The outcome is the same on
    all ranks. Raises: UsageError for too few or too many updates.
    """
    pieces = floats(pieces_of(spec, machine, config.nodes, config.subbatch,
                              gradient_time(spec, machine, config.subbatch),
                              machine.busy(config.devices, config.ranks_per_host)))
    smooth = solve(pieces, config.nodes, config.devices)
    skip = together(comm, lambda: _warm_up(smooth, updates))
    random = np.random.default_rng([seed, comm.rank])
    workers = [EmulatedWorker(parameters, config.subbatch, pieces, computes(pieces.compute, Weather(machine.jitter),
                                                                           random), first)
               for first in random.uniform(0, float(smooth.t_gpu), config.devices)]
    job = Sprint(comm, workers, np.zeros(parameters, np.float32),
                 Options(lambda *_: 1e-3, min_gradients=0, check_every=0, diverged_at=0), config_hash="0" * 12)
    pace = UpdatePace(job.telemetry.update_clock, workers, pieces)
    job.start(1 << 60, skip + updates)
    job.join(lambda at: report(f"update {at.version}", at.version / (skip + updates)))
    seen = _seen(job, skip, skip + updates, pace.pace.late_s + sum(w.pace.late_s for w in workers))
    outcome = _outcome(comm, seen, spec, machine, config)
    job.close()
    return outcome


def _warm_up(smooth: Solution, updates: int) -> int:
    """Updates that are not counted."""
    skip = max(updates // 10, math.ceil(TURNS_OF_WARM_UP * smooth.t_gpu / smooth.t_update))
    if not LEAST_UPDATES <= updates <= MOST_UPDATES - skip:
        raise UsageError(f"updates: expected {LEAST_UPDATES} to {MOST_UPDATES - skip}, got {updates}")
    return skip


def _seen(job: Sprint, skip: int, last: int, late_s: float) -> Seen:
    telemetry = job.telemetry
    arrows = telemetry.arrows[telemetry.arrows["update"] > skip]
    update, first = np.unique(arrows["update"], return_index=True)
    turns = [clock.recent[1:] for clock in telemetry.worker_clocks]
    return Seen(np.concatenate(turns), telemetry.update_clock.recent[skip:last],
                np.bincount(arrows["update"] - skip - 1, minlength=last - skip), arrows["staleness"],
                np.stack([update, arrows["use_s"][first]], axis=1), late_s)


def _outcome(comm: Comm, seen: Seen, spec: NetSpec, machine: Machine, config: Config) -> Outcome:
    """What all ranks saw, put together; a collective."""
    oldest = int(comm.gather_all([float(seen.staleness.max(initial=0))]).max())
    ages = comm.gather_all(np.bincount(seen.staleness, minlength=oldest + 1).astype(float).tolist()).sum(axis=0)
    gradients = comm.gather_all(seen.gradients.astype(float).tolist()).sum(axis=0)
    worker = _mean(comm, seen.worker)
    update = _mean(comm, seen.update)
    if not gradients.sum():
        raise UsageError(f"updates: expected enough for a gradient to arrive, got {len(gradients)}")
    gpu_terms, update_terms = (dict(zip(names, values.tolist(), strict=True))
                               for names, values in ((WORKER_TERMS, worker), (UPDATE_TERMS, update)))
    t_update = float(np.nanmean(comm.gather_all([_pace(seen.moments)])))
    late = comm.gather_all([seen.late_s]).sum() / (len(gradients) * t_update * config.nodes)
    return measured("emulate", spec, machine, config, gpu_terms, update_terms, t_update,
                    Distribution.counted(np.round(config.subbatch * gradients).astype(int)),
                    Distribution.counted(np.arange(len(ages)), ages).likely(), _warnings(float(late)))


def _pace(moments: Array) -> float:
    """Seconds from one update to the next, of (updates, 2) numbers and moments; NaN where there is only one."""
    steps = moments[-1] - moments[0] if len(moments) > 1 else np.full(2, np.nan)
    return float(steps[1] / steps[0])


def _mean(comm: Comm, rows: Array) -> Array:
    """Mean over the turns of all ranks."""
    sums = comm.gather_all([float(len(rows)), *rows.sum(axis=0).tolist()]).sum(axis=0)
    return sums[1:] / max(sums[0], 1.0)


def measured(method: str, spec: NetSpec, machine: Machine, config: Config, worker: dict[str, float],
             update: dict[str, float], t_update: float, minibatch: Distribution, staleness: Distribution,
             warnings: tuple[str, ...]) -> Outcome:
    """An outcome from the telemetry's terms (s), whose barrier and waits are counted apart; t_update by the clock."""
    gpu_terms, update_terms = dict(worker), dict(update)
    idle, wait, barrier = gpu_terms.pop("wait"), update_terms.pop("wait"), update_terms.pop("barrier")
    update_terms["allreduce"] += barrier
    return Outcome(method, spec.name, machine.name, config, gpu_terms, update_terms, sum(gpu_terms.values()) + idle,
                   t_update, barrier, minibatch, staleness, memory_bytes(spec, machine, config.subbatch),
                   machine.device.memory_bytes, warnings=warnings, wait=wait)


def _warnings(late: float) -> tuple[str, ...]:
    if late <= LATE:
        return ()
    return (f"this host was late: pieces took {late:.0%} of an update longer than on the machine; choose fewer "
            "--parameters",)
