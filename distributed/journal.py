"""What a distributed run writes while it goes: lines, metrics.jsonl, pictures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from ..engine.evaluate import Score
from ..engine.meter import Meter
from ..engine.report import Report
from ..engine.runs import RunFolder
from . import pictures
from .measures import Measures
from .progress import Progress
from .ranks import Comm

DRAW_SECONDS = 60.0  # the others wait for rank 0 meanwhile


class Journal:
    """Keeps count on every rank and is written by rank 0, so that the next one can take over when that dies.

    images: in an epoch; rate: of Options.
    """

    def __init__(self, comm: Comm, folder: RunFolder, report: Report, images: int, rate: Callable[[int, int], float],
                 log_every: int, start: Progress, updates: int | None) -> None:
        self._comm, self._folder, self._report = comm, folder, report
        self._images, self._rate, self._log_every, self._updates = images, rate, log_every, updates
        self._start = self._seen = self._logged = start
        self._meter = Meter()
        self._recent = (math.nan, 0.0)
        self._drawn = time.perf_counter()
        self.go_on(lambda progress: True)

    @property
    def images_per_s(self) -> float:
        """Images a second of the whole job so far, evaluations and the first moments left out."""
        return self._meter.images_per_s

    def go_on(self, over: Callable[[Progress], bool]) -> None:
        """A segment begins, which ends when `over`: time starts to count again."""
        self._at, self._over = time.perf_counter(), over

    def tick(self, progress: Progress) -> None:
        """Take note of progress, and write a record when one is due; the end of the segment has one of its own."""
        self._count(progress)
        new = progress.version - self._logged.version
        due = new >= self._log_every or (new and self._logged is self._start)
        if due and not self._over(progress):
            self._log(progress, {})

    def _count(self, progress: Progress) -> None:
        now, samples = time.perf_counter(), progress.samples - self._seen.samples
        if samples:
            self._meter.add(progress.loss_sum - self._seen.loss_sum, samples, now - self._at)
            self._at = now
        self._seen = progress
        self._report.step(progress.samples)

    def _log(self, progress: Progress, more: dict[str, Any]) -> None:
        before, self._logged = self._logged, progress
        if progress.samples > before.samples:
            self._recent = self._meter.take()
        gradients, updates = progress.gradients - before.gradients, progress.version - before.version
        record = {
            "step": progress.version, "epoch": round(progress.samples / self._images, 6), "loss": self._recent[0],
            "lr": self._rate(progress.samples - progress.minibatch, max(progress.version - 1, 0)),
            "images_per_s": self._recent[1], "samples": progress.samples,
            "staleness": (progress.staleness_sum - before.staleness_sum) / gradients if gradients else 0.0,
            "minibatch": (progress.samples - before.samples) / updates if updates else 0.0, **more}
        if self._comm.rank == 0:
            self._report.quiet = False  # this rank may have become the first
            self._folder.log(record)
            self._report.record(record, self._updates)

    def segment(self, progress: Progress, score: Score, measures: Measures, title: str) -> None:
        """Write the record of the end of a segment: score, histograms, times; now and then the pictures."""
        self._count(progress)
        self._log(progress, {"test_loss": score.loss, "top1": score.top1, "top5": score.top5, **measures.as_dict()})
        if self._comm.rank == 0 and time.perf_counter() - self._drawn > DRAW_SECONDS:
            self.draw(title, measures)

    def draw(self, title: str, measures: Measures) -> None:
        """Draw curves and histograms."""
        self._folder.draw_curves(title)
        self._folder.replace("staleness.png", pictures.staleness(measures.staleness, title))
        self._folder.replace("minibatch.png", pictures.minibatch(measures.minibatch, title))
        self._drawn = time.perf_counter()
