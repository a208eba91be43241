"""Training on many ranks and devices: the run on one screen.

open -> [segment: loops run -> checkpoint -> score -> record] for every epoch -> summary
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import trainer
from ..engine.config import TrainConfig
from ..engine.errors import UsageError
from ..engine.evaluate import Score
from ..engine.observer import Observer
from ..engine.report import Report
from ..engine.resume import Say, nothing_left, open_folder
from ..engine.runs import CONFIG, SUMMARY, RunFolder, environment
from ..engine.worker import Worker
from . import header, measures, profiling, tracing
from .checkpoints import Checkpoints, forget_after, places, progress_of
from .comm import open_comm
from .data_parallel import data_parallel
from .journal import Journal
from .launch import guard, launched
from .measures import Measures
from .opening import Setup, next_goal, open_setup, resolve, rules
from .ranks import Comm, RankFailed, agree_signature
from .recovery import settled
from .scoring import Scorer
from .shares import open_worker, resume_worker
from .sprint import Interrupted, Sprint
from .together import text_of_first, together
from .watch import Watch, signals

RECORD, TRACE = "record", "trace.json"


def train(options: dict[str, Any], given: set[str], observe: Callable[[int, Say], Observer],
          scoring: Callable[[str], Callable[[Path], None]]) -> dict[str, Any] | signal.Signals:
    """Train as `options` (fields of TrainConfig) say, on all ranks that the launcher has started, or on this one.

    given: names of the options that a resumed run must not take from its checkpoint. observe(steps, say): who watches
    a worker. scoring(machine file): who scores the prediction against a finished run folder, on rank 0. Returns the
    summary; the signal that ended a local run early. Raises what has one line for people, on the rank that says it, or
    SystemExit.
    """
    with guard():
        comm = open_comm()
    with guard(comm), Watch(comm, TrainConfig.stall) as watch:
        summary = _train(watch, comm, options, given, observe, scoring)
        with contextlib.suppress(RankFailed):  # who is ready first waits here, where the watch looks
            comm.meet(np.zeros(1))
        comm.ended = True
    comm.close()
    return summary


def _train(watch: Watch, comm: Comm, options: dict[str, Any], given: set[str],
           observe: Callable[[int, Say], Observer],
           scoring: Callable[[str], Callable[[Path], None]]) -> dict[str, Any] | signal.Signals:
    report = Report(quiet=comm.rank > 0, plain=launched() is not None)  # mpirun gives all its ranks a terminal
    config, resumed = together(comm, lambda: resolve(options, given, report))
    agree_signature(comm, config.hash(), 0, resumed[1].step if resumed else 0)
    watch.limit_s = config.stall
    if config.algorithm == "local":
        together(comm, lambda: _alone(comm))
        observer = observe(config.profile, report.line) if config.profile else None
        return trainer.train(config, report, given, observer)
    machine = config.machine
    score_prediction = together(comm, lambda: scoring(machine) if machine else None)
    observers = [observe(config.profile, report.line) for _ in range(config.devices)] if config.profile else []
    training = Training(open_setup(comm, config, resumed, observers), report, observers, watch)
    try:
        summary = training.run()
    finally:
        training.job.close()
    training.setup.transport.close()
    if score_prediction and comm.rank == 0:
        score_prediction(training.folder.path)
    return summary


def _alone(comm: Comm) -> None:
    if comm.size > 1:
        raise UsageError(f"algorithm: expected sync or sprint on {comm.size} ranks, got local")


class Training:
    """One rank's part of a run. Everything but its workers is the same on all ranks; rank 0 writes the run folder."""

    def __init__(self, setup: Setup, report: Report, observers: Sequence[Observer], watch: Watch) -> None:
        self.setup, self.comm, self.config, self.report = setup, setup.comm, setup.config, report
        self.observers, self.watch = observers, watch
        self.options = rules(self.config, setup.layout.minibatch, setup.images)
        self.folder = RunFolder(Path(text_of_first(self.comm, together(self.comm, self._open_folder))))
        header.say(report, setup, self.folder.path)
        self.score = Scorer(self.comm, setup.sessions)
        self.saver = self._checkpoints(self.folder.checkpoints)
        self.workers: list[Worker] = together(self.comm, self._open_workers)
        self.job = together(self.comm, self._open_job)
        self.journal = Journal(self.comm, self.folder, report, setup.images, self.options.rate, self.config.log_every,
                               self.job.progress, self.config.steps)
        self.over = self.finished  # nothing is left to do: only the score is made again
        self.measures: Measures | None = None
        self.signal = 0

    def _open_folder(self) -> str:
        """Rank 0 makes the run folder ready; the others learn its name."""
        if self.comm.rank:
            return ""
        folder = open_folder(self.config, self.setup.resumed)
        forget_after(folder.checkpoints, self.setup.resumed[1].step if self.setup.resumed else -1)
        for old in (folder.path / RECORD).glob("*"):
            old.unlink()
        (folder.path / RECORD).mkdir(exist_ok=True) if self.config.deterministic else None
        return str(folder.path)

    def _checkpoints(self, folder: Path) -> Checkpoints:
        return Checkpoints(self.comm, folder, self.setup.sessions[0], self.config, self.setup.layout,
                           self.config.save_every)

    def _open_job(self) -> Sprint:
        setup, config, record = self.setup, self.config, self.folder.path / RECORD
        network = setup.sessions[0].network
        workers = [profiling.ObservedWorker(*pair) for pair in zip(self.workers, self.observers, strict=False)]
        saved = setup.resumed[1] if setup.resumed else None
        make = data_parallel if config.algorithm == "sync" else Sprint
        return make(self.comm, workers or self.workers, network.device.download(network.weights.flat), self.options,
                    config_hash=config.hash(), momentum=saved.optimizer["momentum"] if saved else None,
                    progress=progress_of(saved), save=self.saver,
                    record=record if config.deterministic else None, faults=setup.faults,
                    transport=setup.transport, watch=self.watch, go_on=self.go_on)

    def _open_workers(self) -> list[Worker]:
        setup, rank = self.setup, self.comm.ids[self.comm.rank]
        shares, first = len(setup.layout.batches(setup.layout.ids)), setup.layout.first_share(rank)
        samples = progress_of(setup.resumed[1] if setup.resumed else None).samples
        workers = [open_worker(session, self.config.algorithm, lambda share, _: setup.layout.part(share, self.comm.ids),
                               first + t, shares, samples) for t, session in enumerate(setup.sessions)]
        states = places(*setup.resumed, setup.layout).get(rank, []) if setup.resumed else []
        for worker, state in zip(workers, states, strict=False):
            resume_worker(worker, state)
        return workers

    def run(self) -> dict[str, Any]:
        """batches -> gradients -> allreduce -> weights, epoch by epoch; returns the summary."""
        began = time.perf_counter()
        self.comm.pulse.enter("run", self.job.progress.version)
        together(self.comm, self._write_config)
        score = None
        if self.over:
            at = self.job.progress
            self.report.line(nothing_left(self.config, at.version, at.samples / self.setup.images))
        bar = self.report.progress(self.job.progress.samples, self.samples, "sample")
        with bar, signals(self._on_signal):  # Sprint takes over while its threads run
            while score is None or not self.finished:
                score = self.segment()
        return self.summary(score, time.perf_counter() - began)

    @property
    def finished(self) -> bool:
        """Whether all updates are made."""
        if self.config.steps:
            return self.job.progress.version >= self.config.steps
        return self.job.progress.samples >= self.samples

    @property
    def samples(self) -> int:
        """Samples of the whole run, about so many where --steps counts updates."""
        if self.config.steps:
            return self.config.steps * self.setup.layout.minibatch
        return self.config.epochs * self.setup.images

    def segment(self) -> Score:
        """Go on to the end of the epoch, save, and score."""
        try:
            if not self.finished:
                self._train_on(next_goal(self.job.progress.samples, self.setup.images), self.config.steps)
            return self._scored()
        except Interrupted as error:
            raise self._how_to_go_on(error) from None

    def _train_on(self, samples: int, updates: int | None) -> None:
        self.journal.go_on(lambda at: at.samples >= samples or (updates is not None and at.version >= updates))
        self.job.start(samples, updates)
        if self.signal:
            self.job.stop(self.signal)
        self.job.join(self.journal.tick)
        self.comm.ended = False  # an error between two segments is no agreed one
        self.signal = self.signal or self.job.unheard
        self.saver.asked = True
        self.job.checkpoint()
        self.saver.asked = False

    def _scored(self) -> Score:
        self.comm.pulse.enter("score", self.job.progress.version)
        weights, _, _ = self.job.weights.snapshot()
        at_most = self.job.progress.samples if self.config.data == "synthetic" else None
        (score, number), self.measures = settled(self.job, lambda: (
            self.score(weights, at_most, lambda: self.signal), measures.gather(self.comm, self.job.telemetry)))
        if score is None:
            self.comm.ended = True
            name = signal.Signals(number).name
            raise Interrupted(f"stopped at version {self.job.progress.version}: {name}", number)
        self.comm.pulse.enter("record", self.job.progress.version)
        if not self.over:
            self.journal.segment(self.job.progress, score, self.measures, self.title)
        return score

    def _on_signal(self, number: int) -> None:
        """Ends the run with the next vote of the ranks; a second one at once."""
        if self.signal or self.job.unheard:
            raise KeyboardInterrupt
        self.signal = number

    def _how_to_go_on(self, error: Interrupted) -> Interrupted:
        return Interrupted(f"{error}; {self.go_on}", error.exit_code - 128)

    @property
    def go_on(self) -> str:
        """How this run goes on after an end that was none."""
        return f"go on with: [mpirun -n N] sprint train {self.config.net} --resume {self.folder.path}"

    @property
    def title(self) -> str:
        """Of the pictures."""
        return f"{self.config.net} on {self.config.data}, {self.config.algorithm}, {header.counted(self.setup)}"

    def _write_config(self) -> None:
        """config.json, and what a replay starts from."""
        setup, session = self.setup, self.setup.sessions[0]
        if self.config.deterministic:
            start = self._checkpoints(self.folder.path / RECORD)
            start.asked = True
            weights, momentum, published = self.job.weights.snapshot()
            start(weights, momentum, published.version, {
                "rank": self.comm.ids[self.comm.rank], "progress": asdict(self.job.progress),
                "workers": [worker.state() for worker in self.workers]})
        if self.comm.rank == 0:
            config = replace(self.config, image_size=session.spec.in_shape[1], classes=session.spec.classes,
                             device=session.device.kind, device_threads=setup.place.threads, out=str(self.folder.path))
            self.folder.write(CONFIG, {"config": config.to_json(), "environment": environment(session.device),
                                       "job": header.facts(setup)})

    def summary(self, score: Score, seconds: float) -> dict[str, Any]:
        """Write, draw and say the result; where nothing was left to do, the earlier one with this score."""
        every = settled(self.job, lambda: tracing.gather(self.comm, self.job.telemetry.arrows))
        session, progress = self.setup.sessions[0], self.job.progress
        assert self.measures is not None
        scored = score.plain() | {"bad_images": len(session.dataset.bad)}
        summary = {
            **scored, "images_per_s": self.journal.images_per_s, "seconds": seconds, "steps": progress.version,
            "epochs": round(progress.samples / self.setup.images, 6), "samples": progress.samples,
            "ranks": self.comm.size, "ranks_at_start": len(self.setup.layout.ids),
            "workers": len(self.setup.layout.batches(self.comm.ids)), "algorithm": self.config.algorithm,
            "gradient_form": self.config.gradient_form, "staleness": progress.staleness,
            "staleness_largest": self.measures.staleness.largest, "minibatch": self.measures.minibatch.mean,
            "planned_peak_bytes": session.memory.total, "peak_bytes": session.peak_bytes()}
        if self.over:
            summary |= self.folder.summary(progress.version) | scored
        elif self.comm.rank == 0:
            self.journal.draw(self.title, self.measures)
            tracing.write(self.folder.path / TRACE, every, self.comm.ids)
        if self.observers:
            for line in profiling.write(self.folder, self.comm.ids[self.comm.rank], self.observers,
                                        self.job.telemetry, self.title):
                self.report.line(f"profile  {line}")
        if self.comm.rank == 0:
            self.folder.write(SUMMARY, summary)
            self.report.summary(summary, session, self.folder.path)
        return summary
