"""`--profile N` of a run on many workers: N gradients of each, and the terms of both loops of every rank."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.observer import Observer
from ..engine.runs import RunFolder
from . import pictures
from .telemetry import Clock, Telemetry
from .worker import GradientWorker

FOLDER = "profile"


class ObservedWorker:
    """A worker whose gradients somebody sees, each with its loading, as one step."""

    def __init__(self, worker: GradientWorker, observer: Observer) -> None:
        self._worker, self._observer = worker, observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def compute(self) -> tuple[float, int]:
        """Compute, seen."""
        return self._observer.step(self._worker.compute)


def write(run: RunFolder, rank: int, observers: Sequence[Observer], telemetry: Telemetry, title: str) -> list[str]:
    """Write profile/rankR-workerT/ of every worker that was seen, and rankR-loops.json, .csv and .png.

    Returns lines for people. Raises OSError.
    """
    lines, folder = [], run.path / FOLDER
    for t, observer in enumerate(observers):
        own = folder / f"rank{rank}-worker{t}"
        own.mkdir(parents=True, exist_ok=True)
        words = observer.write(own, f"{title}: rank {rank}, worker {t}")
        lines.append(f"rank {rank} worker {t}: {words or 'too few gradients to profile'}")
    loops = {f"worker {t}": terms_of(clock) for t, clock in enumerate(telemetry.worker_clocks)}
    loops["update thread"] = terms_of(telemetry.update_clock)
    name = f"{FOLDER}/rank{rank}-loops"
    run.write(f"{name}.json", {"units": "ms", "rank": rank, "loops": loops})
    run.replace(f"{name}.csv", as_csv(loops).encode())
    run.replace(f"{name}.png", pictures.loops(loops, f"{title}: rank {rank}"))
    return lines


def terms_of(clock: Clock) -> dict[str, Any]:
    """Iterations, and of the last ones the median, MAD and mean of every term in milliseconds."""
    rows = 1e3 * clock.recent
    if not len(rows):
        return {"iterations": 0, "terms": {}}
    median = np.median(rows, axis=0)
    spread = np.median(np.abs(rows - median), axis=0)
    return {"iterations": clock.iterations, "terms": {
        name: {"median": float(m), "mad": float(s), "mean": float(a)}
        for name, m, s, a in zip(clock.terms, median, spread, rows.mean(axis=0), strict=True)}}


def as_csv(loops: dict[str, Any]) -> str:
    """One line for each thread and term."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["thread", "term", "ms_median", "ms_mad", "ms_mean"])
    for thread, loop in loops.items():
        writer.writerows([thread, term, *ms.values()] for term, ms in loop["terms"].items())
    return stream.getvalue()
