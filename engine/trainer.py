"""Training: the loop, and what it writes into the run folder."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from signal import Signals
from typing import Any

import numpy as np

from ..kernels.conv_choice import CHOICES
from . import checkpoint, schedule
from .checkpoint import Checkpoint
from .config import TrainConfig
from .evaluate import Score, evaluate
from .interrupt import Interrupt
from .local import Local, Updates
from .meter import Meter
from .observer import Observer, Unobserved
from .report import Report
from .resume import merged, nothing_left, open_folder, open_saved
from .runs import CONFIG, SUMMARY, RunFolder, environment
from .session import Session, open_session

SAVE_SECONDS = 600.0  # a checkpoint at least so often within a long epoch


def train(config: TrainConfig, report: Report, given: set[str] | None = None,
          observer: Observer | None = None) -> dict[str, Any] | Signals:
    """Train as `config` says and return the summary, or the signal (SIGINT or SIGTERM) that ended the run early.

    given: names of the options that a resumed run must not take from its checkpoint (None: all). observer: sees every
    step and writes into the run folder.
    Raises UsageError, ValueError, OSError or RuntimeError, each with one line for people.
    """
    resumed = open_saved(config, report.line)
    if resumed:
        config = merged(config, given, *resumed, report.line)
        CHOICES.pin(resumed[1].choices)
    observer = observer or Unobserved()
    session = open_session(config, resumed[1] if resumed else None, observer.wrap)
    trainer = Trainer(session, open_folder(config, resumed), report, observer)
    try:
        return trainer.run()
    finally:
        trainer.updates.close()


class Trainer:
    """One run: its algorithm, its folder, its report, and the state that a checkpoint keeps."""

    def __init__(self, session: Session, folder: RunFolder, report: Report, observer: Observer) -> None:
        self.session, self.folder, self.report, self.config = session, folder, report, session.config
        self.observer = observer
        report.header(session, Local.gradient, folder.path)
        self.updates: Updates = Local(session)
        self.tester = session.feeder()
        self.schedule = schedule.parse(self.config.schedule)
        self.step = self.saved_step = 0
        if session.saved:
            self.updates.restore(session.saved)
            self.step = self.saved_step = session.saved.step
        self.meter = Meter()

    def run(self) -> dict[str, Any] | Signals:
        """batches -> forward -> backward -> update; after every epoch a checkpoint and the test images."""
        begin = self.saved_at = time.perf_counter()
        facts = {"config": self.effective(), "environment": environment(self.session.device)}
        self.folder.write(CONFIG, facts)
        score = None
        if self.finished:
            self.report.line(nothing_left(self.config, self.step, self.updates.epoch))
        with Interrupt() as interrupt, self.report.progress(self.step, self.steps):
            while not self.finished and not interrupt.asked:
                lr = self.lr
                self.advance(lr)
                score = None
                if self.updates.epoch_ended or self.finished:
                    self.save()
                    score = self.test(interrupt)
                self.log(lr, score)
                if time.perf_counter() - self.saved_at > SAVE_SECONDS:
                    self.save()
            self.save()
            if self.finished and score is None and not interrupt.asked:
                score = self.test(interrupt)
        title = f"{self.config.net} on {self.config.data}"
        self.folder.draw_curves(title)
        if words := self.observer.write(self.folder.path, title):
            self.report.line(words)
        if score is None:
            assert interrupt.number is not None
            self.say_stopped()
            return interrupt.number
        return self.summary(score, time.perf_counter() - begin)

    @property
    def steps(self) -> int:
        """Updates of the whole run."""
        return self.config.steps or self.config.epochs * self.updates.steps_per_epoch

    @property
    def epochs(self) -> float:
        """Passes over the training images of the whole run."""
        return self.config.steps / self.updates.steps_per_epoch if self.config.steps else self.config.epochs

    @property
    def finished(self) -> bool:
        """Whether all updates are made."""
        if self.config.steps:
            return self.step >= self.config.steps
        return self.updates.epoch >= self.config.epochs

    @property
    def lr(self) -> float:
        """Learning rate of the next update."""
        return self.config.lr * self.schedule(self.step, self.updates.epoch, self.epochs)

    def advance(self, lr: float) -> None:
        """Make one update. Raises RuntimeError when the loss is no number any more."""
        begin = time.perf_counter()
        with np.errstate(over="ignore", invalid="ignore"):  # a diverging run gets one line, below
            loss_sum, samples = self.observer.step(lambda: self.updates.step(self.step, lr))
        self.meter.add(loss_sum, samples, time.perf_counter() - begin)
        self.step += 1
        self.report.step(self.step)
        if not math.isfinite(loss_sum):
            raise RuntimeError(f"train: expected a finite loss, got {loss_sum} in step {self.step} at learning "
                               f"rate {lr:.3g}: try a lower --lr, or --schedule warmup:100+{self.config.schedule}")

    def test(self, interrupt: Interrupt) -> Score | None:
        """Score on the test images; on no more synthetic ones, which mean nothing, than were trained on."""
        trained = self.step * self.config.subbatch if self.config.data == "synthetic" else None
        return evaluate(self.session.network, self.session.dataset.test, self.tester, at_most=trained,
                        stop=lambda: interrupt.asked)

    def log(self, lr: float, score: Score | None) -> None:
        """Write a record after the first step, every --log-every steps, with every score, and at the end."""
        if not (score or self.finished or self.step == 1 or self.step % self.config.log_every == 0):
            return
        loss, images_per_s = self.meter.take()
        record = {"step": self.step, "epoch": round(self.updates.epoch, 6), "loss": loss, "lr": lr,
                  "images_per_s": images_per_s}
        if score:
            record |= {"test_loss": score.loss, "top1": score.top1, "top5": score.top5}
        self.folder.log(record)
        self.report.record(record, self.steps)

    def save(self) -> None:
        """Write a checkpoint, unless this step has one."""
        if self.step == self.saved_step:
            return
        session, dataset = self.session, self.session.dataset
        checkpoint.add(self.folder.checkpoints, Checkpoint(
            config=self.config, step=self.step, epoch=self.updates.epoch,
            weights=session.network.weights.download(), optimizer=self.updates.optimizer_state(),
            worker=self.updates.worker_state(), choices=CHOICES.table(), class_names=dataset.class_names,
            image_shape=dataset.shape, mean=dataset.mean.tolist(), std=dataset.std.tolist()))
        self.saved_step, self.saved_at = self.step, time.perf_counter()

    def effective(self) -> dict[str, Any]:
        """The options with what the defaults came to."""
        config, device, spec = self.config, self.session.device, self.session.spec
        return replace(config, image_size=spec.in_shape[1], classes=spec.classes, steps=self.steps,
                       device=device.name, device_threads=device.threads, out=str(self.folder.path)).to_json()

    def summary(self, score: Score, seconds: float) -> dict[str, Any]:
        """Write and say the result; where nothing was left to do, the earlier one with this score."""
        scored = score.plain() | {"bad_images": len(self.session.dataset.bad)}
        summary = {
            **scored, "images_per_s": self.meter.images_per_s, "seconds": seconds, "steps": self.step,
            "epochs": round(self.updates.epoch, 6), "ranks": self.updates.ranks,
            "planned_peak_bytes": self.session.memory.total, "peak_bytes": self.session.peak_bytes()}
        if not self.meter.steps:
            summary |= self.folder.summary(self.step) | scored
        self.folder.write(SUMMARY, summary)
        self.report.summary(summary, self.session, self.folder.path)
        return summary

    def say_stopped(self) -> None:
        """Say how to go on."""
        self.report.line(f"stopped  after step {self.step}; go on with: "
                         f"sprint train {self.config.net} --resume {self.folder.path}")
