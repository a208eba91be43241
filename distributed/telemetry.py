"""What the loops measured, as plain bounded arrays: seconds per term, staleness, mini-batch, publish-to-use arrows.

The terms are those of the model, Oyama et al. 2016, eqs. (4)-(8): eight of a GPU thread and eight of the
update thread. "wait" (for a version, for a gradient) is ours and 0 in the paper's free-running loops; "barrier"
is the part of Allreduce before the last rank came, counted apart from it.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np

from .ranks import Comm

WORKER_TERMS = ("lock_weights", "fetch_weights", "load_image", "deform_image", "compute_gradient",
                "compute_update_val", "lock_gradient", "update_gradient", "wait")
UPDATE_TERMS = ("lock_gradient", "sum_gradient", "update_old_weights", "add_momentum", "barrier", "allreduce",
                "update_momentum", "lock_weights", "update_weights", "wait")
ARROW = np.dtype([("worker", np.int32), ("staleness", np.int32), ("version", np.int64), ("update", np.int64),
                  ("publish_s", np.float64), ("deposit_s", np.float64), ("use_s", np.float64)])


class Clock:
    """A stopwatch that hands every moment to exactly one term; for one thread."""

    def __init__(self, terms: tuple[str, ...], recent: int = 1024) -> None:
        self.terms = terms
        self._index = {name: i for i, name in enumerate(terms)}
        self._now = [0.0] * len(terms)
        self._total = np.zeros(len(terms))
        self._rows = np.zeros((recent, len(terms)))
        self.iterations = 0
        self._last = time.perf_counter()

    def restart(self) -> None:
        """Start an iteration: what has passed since the last lap belongs to nobody."""
        self._now = [0.0] * len(self.terms)
        self._last = time.perf_counter()

    def lap(self, term: str) -> None:
        """Give the time since the last lap to `term`."""
        now = time.perf_counter()
        self._now[self._index[term]] += now - self._last
        self._last = now

    def move(self, source: str, term: str, seconds: float) -> None:
        """Give `seconds` of `source` to `term` instead, as the worker reports them."""
        seconds = min(seconds, self._now[self._index[source]])
        self._now[self._index[source]] -= seconds
        self._now[self._index[term]] += seconds

    def finish(self) -> None:
        """End the iteration and keep its row."""
        self._rows[self.iterations % len(self._rows)] = self._now
        self._total += self._now
        self.iterations += 1

    @property
    def recent(self) -> np.ndarray:
        """Seconds per term of the last iterations, oldest first, (rows, terms) float64."""
        rows = len(self._rows)
        if self.iterations <= rows:
            return self._rows[:self.iterations].copy()
        return np.roll(self._rows, -(self.iterations % rows), axis=0)

    def mean_ms(self) -> dict[str, float]:
        """Mean milliseconds per iteration of every term, over all iterations."""
        count = max(self.iterations, 1)
        return {name: 1e3 * float(s) / count for name, s in zip(self.terms, self._total, strict=True)}


class Histogram:
    """Counts of non-negative integers in bounded memory: the bin width doubles when a value does not fit."""

    def __init__(self, bins: int = 256) -> None:
        self.counts = np.zeros(bins, np.int64)
        self.width = 1
        self.total = 0
        self.sum = 0
        self.largest = 0

    def add(self, value: int) -> None:
        """Count `value`."""
        while value >= self.width * self.counts.size:
            self.widen()
        self.counts[value // self.width] += 1
        self.total += 1
        self.sum += value
        self.largest = max(self.largest, value)

    def widen(self) -> None:
        """Double the width of the bins."""
        self.counts = np.append(self.counts.reshape(-1, 2).sum(axis=1), np.zeros(self.counts.size // 2, np.int64))
        self.width *= 2

    @property
    def mean(self) -> float:
        """Mean of the values counted (exact, whatever the width)."""
        return self.sum / self.total if self.total else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return width, counts up to the last non-empty bin, mean and largest: one entry of metrics.jsonl."""
        used = int(np.flatnonzero(self.counts)[-1]) + 1 if self.total else 0
        return {"width": self.width, "counts": self.counts[:used].tolist(), "mean": self.mean,
                "largest": self.largest}


def whole_job(histogram: Histogram, comm: Comm) -> Histogram:
    """Add the histograms of all ranks, which must have equal bins; a collective of the main thread."""
    rows = comm.gather_all([histogram.width, histogram.total, histogram.sum, histogram.largest])
    mine, job = copy.deepcopy(histogram), Histogram(histogram.counts.size)
    job.width = int(rows[:, 0].max())
    while mine.width < job.width:
        mine.widen()
    job.total, job.sum, job.largest = int(rows[:, 1].sum()), int(rows[:, 2].sum()), int(rows[:, 3].max())
    job.counts = comm.gather_all([float(count) for count in mine.counts]).sum(axis=0).astype(np.int64)
    return job


class Telemetry:
    """Everything one rank measured. Staleness and terms are this rank's own; mini-batch is the whole job's."""

    def __init__(self, workers: int, arrows: int = 16384) -> None:
        self.worker_clocks = [Clock(WORKER_TERMS) for _ in range(workers)]
        self.update_clock = Clock(UPDATE_TERMS)
        self.staleness = Histogram()
        self.minibatch = Histogram()
        self._arrows = np.zeros(arrows, ARROW)
        self._arrow_count = 0

    def used(self, deposits: list[Any], minibatch: int) -> None:
        """Count one published update: the gradients (Deposit) of this rank in it, and its samples everywhere."""
        now = time.perf_counter()
        self.minibatch.add(minibatch)
        for d in deposits:
            self.staleness.add(d.staleness)
            self._arrows[self._arrow_count % self._arrows.size] = (
                d.worker, d.staleness, d.version, d.update, d.read_s, d.deposit_s, now)
            self._arrow_count += 1

    @property
    def arrows(self) -> np.ndarray:
        """The last gradients, oldest first, dtype ARROW: an arrow of a trace goes from publish_s to use_s."""
        if self._arrow_count <= self._arrows.size:
            return self._arrows[:self._arrow_count].copy()
        return np.roll(self._arrows, -(self._arrow_count % self._arrows.size))

    def as_dict(self) -> dict[str, Any]:
        """Return the histograms and mean terms as plain data for metrics.jsonl (times in ms)."""
        return {"staleness": self.staleness.as_dict(), "minibatch": self.minibatch.as_dict(),
                "worker_ms": [clock.mean_ms() for clock in self.worker_clocks],
                "update_ms": self.update_clock.mean_ms(), "updates": self.update_clock.iterations}
