"""What a distributed run is opened from: configuration, devices, data, workers; every rank at once, or none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import schedule
from ..engine.checkpoint import Checkpoint
from ..engine.config import TrainConfig
from ..engine.errors import UsageError
from ..engine.observer import Observer, Unobserved
from ..engine.report import Report
from ..engine.resume import merged, open_saved
from ..engine.session import Session, gigabytes, open_session
from ..kernels import nccl
from ..kernels.conv_choice import CHOICES
from ..kernels.cuda import CudaDevice
from ..kernels.device import open_device
from .buffers import TAIL
from .layout import Layout, Place, own_cores, place
from .options import Options
from .probe import check_transport
from .pulse import RANKS
from .ranks import Comm, StartError
from .together import text_of_first, together
from .transport import HostTransport, Transport, by_mpi, by_nccl, rehearse
from .watch import Fault, parse_fault

Resumed = tuple[Path, Checkpoint]
HOST_COPIES = 5  # flat buffers of a rank beside those of its workers: three versions, what is sent, what is kept


@dataclass(frozen=True)
class Setup:
    """One rank's part of a job. config: as asked, with what a resumed run keeps; cores: that this rank may use."""

    comm: Comm
    config: TrainConfig
    layout: Layout
    place: Place
    cores: float
    sessions: list[Session]
    transport: Transport
    faults: list[Fault]
    resumed: Resumed | None

    @property
    def images(self) -> int:
        """Training images: samples of an epoch over all ranks."""
        return len(self.sessions[0].dataset.train)


def resolve(options: dict[str, Any], given: set[str], report: Report) -> tuple[TrainConfig, Resumed | None]:
    """The configuration that `options` ask for; a resumed run has what its checkpoint says, unless `given`.

    Raises UsageError, ValueError or OSError.
    """
    options = dict(options)
    if options["resume"] and "algorithm" not in given:
        known = open_saved(TrainConfig(options["net"], out=options["out"], resume=options["resume"]), lambda line: None)
        options["algorithm"] = known[1].config.algorithm if known else options["algorithm"]
    config = TrainConfig(**options)
    if config.algorithm == "local":
        return config, None
    resumed = open_saved(config, report.line)
    if resumed:
        path, saved = resumed
        if "subbatch" in given:  # no part of the state here: the place in the data counts samples
            saved = replace(saved, config=replace(saved.config, subbatch=config.subbatch))
        config = merged(config, given, path, saved, report.line)
    return config, resumed


def open_setup(comm: Comm, config: TrainConfig, resumed: Resumed | None, observers: Sequence[Observer] = ()) -> Setup:
    """Open what this rank needs; a collective that fails on all ranks with the words of the first that failed.

    observers: one of each worker, where somebody watches; they wrap its device.
    """
    cores = own_cores(comm)
    layout = Layout.gather(comm, config.devices, config.subbatch)
    where, faults = together(comm, lambda: (place(comm, config, cores), _faults(config, comm)))
    together(comm, lambda: check_transport(comm, config, where))
    if resumed:
        CHOICES.pin(resumed[1].choices)
    sessions = together(comm, lambda: _sessions(comm, config, where, resumed[1] if resumed else None,
                                                observers or [Unobserved()] * len(where.names)))
    # the first rank of a host compiles and measures alone; the others find it in the cache
    together(comm, lambda: _warm_up(sessions if comm.local_rank == 0 else []))
    together(comm, lambda: _warm_up(sessions if comm.local_rank > 0 else []))
    transport = _transport(comm, config, where, sessions[0].network.weights.flat.size + TAIL)
    return Setup(comm, config, layout, where, cores, sessions, transport, faults, resumed)


def _transport(comm: Comm, config: TrainConfig, where: Place, n: int) -> Transport:
    """How vectors of n floats are summed, tried out once; a collective. Raises StartError, RuntimeError."""
    if config.transport == "host":
        return HostTransport(comm, config.deterministic)
    device = together(comm, lambda: CudaDevice(int(where.names[0].partition(":")[2])))  # a stream beside the worker's
    if config.nccl:
        identity = text_of_first(comm, together(comm, lambda: "" if comm.rank else nccl.new_identity()))
    try:
        with comm.pulse.within("join NCCL", RANKS if config.nccl else ""):
            transport = by_nccl(comm, device, n, identity) if config.nccl else by_mpi(comm, device, n)
    except RuntimeError as error:  # others may wait for this rank: it ends them
        raise StartError(str(error)) from error
    together(comm, rehearse(comm, transport, n))
    return transport


def _faults(config: TrainConfig, comm: Comm) -> list[Fault]:
    try:
        faults = [parse_fault(text) for text in (config.inject or "").split("+") if text]
    except ValueError as error:
        raise UsageError(str(error)) from error
    for fault in faults:
        if fault.rank not in comm.ids:
            raise UsageError(f"inject: expected a rank from 0 to {comm.size - 1}, got {fault.rank}")
    return faults


def _sessions(comm: Comm, config: TrainConfig, where: Place, saved: Checkpoint | None,
              observers: Sequence[Observer]) -> list[Session]:
    """One session a worker, all on one data set."""
    first = open_session(replace(config, device=where.names[0], device_threads=where.threads), saved, observers[0].wrap)
    sessions = [first]
    for name, observer in zip(where.names[1:], observers[1:], strict=True):
        device = observer.wrap(open_device(name, threads=where.threads, math_mode=config.math))
        sessions.append(replace(first, device=device))
    if first.device.kind == "host":
        _check_memory(comm, first, len(sessions))
    for session in sessions:
        session.network  # noqa: B018  (takes its memory now)
    return sessions


def _check_memory(comm: Comm, first: Session, workers: int) -> None:
    """All workers of all ranks of a host share its memory."""
    rank = workers * (first.memory.total + first.memory.weights) + HOST_COPIES * first.memory.weights
    if rank * comm.local_size > first.available:
        raise UsageError(f"memory: expected a plan within the {gigabytes(first.available)} of this host, got "
                         f"{gigabytes(rank * comm.local_size)} for {comm.local_size} ranks with {workers} workers each")


def _warm_up(sessions: list[Session]) -> None:
    """Let kernels be compiled and algorithms be measured before there are threads."""
    for session in sessions:
        device, n = session.device, session.config.subbatch
        C, H, W = session.spec.in_shape
        session.network.gradient(device.zeros((C, n, H, W)), device.zeros(n, np.int32), 0.0)


def rules(config: TrainConfig, minibatch: int, images: int) -> Options:
    """The rules of the run; minibatch: samples of one gradient of every worker; images: of an epoch.

    The schedule counts samples: an epoch is `images` of them, a step `minibatch` or what is left of the epoch, whatever
    the updates of an asynchronous run really hold; a run of so many updates (--steps) counts each of them as a step.
    For `sync` both are the steps of a single device.
    """
    momentum = config.momentum if config.optimizer == "momentum" else 0.0
    return Options(
        rate=_rate(config, minibatch, images), momentum=momentum, form=config.gradient_form,
        max_staleness=config.max_staleness, staleness_rate=config.staleness_lr, warmup_sync=config.warmup_sync,
        min_gradients=config.min_gradients, check_every=config.check_every, save_every=config.save_every,
        diverged_at=config.diverged_at, stall_s=config.stall, ordered=config.deterministic)


def _rate(config: TrainConfig, minibatch: int, images: int) -> Callable[[int, int], float]:
    factor, steps = schedule.parse(config.schedule), -(-images // minibatch)  # in an epoch
    epochs = config.steps / steps if config.steps else float(config.epochs)

    def rate(samples: int, version: int) -> float:
        if config.steps:
            samples = images * (version // steps) + minibatch * (version % steps)
        epoch, place = divmod(samples, images)
        return config.lr * factor(epoch * steps + place // minibatch, samples / images, epochs)

    return rate


def next_goal(samples: int, images: int) -> int:
    """Samples at the end of the epoch that is going on."""
    return images * (math.floor(samples / images) + 1)
