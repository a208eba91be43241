"""trace.json: both loops of every rank as they went, with an arrow from each publication to the update that used it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..engine.tracefile import TraceFile
from .ranks import Comm
from .telemetry import ARROW

GRADIENTS = 2000  # the last ones of each rank that are drawn


def gather(comm: Comm, arrows: np.ndarray) -> list[np.ndarray]:
    """The last gradients (dtype ARROW) of every rank, on the clock of rank 0; a collective of the main threads."""
    mine = arrows[-GRADIENTS:]
    longest = int(comm.gather_all([float(mine.size)]).max())
    names = ARROW.names or ()
    table = np.full((longest, len(names)), -1.0)
    for column, name in enumerate(names):
        table[:mine.size, column] = mine[name]
    rows = comm.gather_all(table.ravel().tolist()).reshape(comm.size, longest, len(names))
    every = [_unpacked(row[row[:, 0] >= 0]) for row in rows]
    return [_shifted(own, _offset_s(every[0], own)) for own in every]


def _unpacked(table: np.ndarray) -> np.ndarray:
    own = np.zeros(len(table), ARROW)
    for column, name in enumerate(ARROW.names or ()):
        own[name] = table[:, column]
    return own


def _offset_s(first: np.ndarray, own: np.ndarray) -> float:
    """How far the clock of a rank is ahead: a version is published everywhere at nearly one moment."""
    _, here, there = np.intersect1d(first["update"], own["update"], return_indices=True)
    return float(np.median(own["use_s"][there] - first["use_s"][here])) if here.size else 0.0


def _shifted(own: np.ndarray, offset_s: float) -> np.ndarray:
    for name in ("publish_s", "deposit_s", "use_s"):
        own[name] -= offset_s
    return own


def write(path: Path, every: list[np.ndarray], ids: list[int]) -> None:
    """Draw what gather() gave: row 0 of a rank is its update thread, row 1 + t its worker t."""
    start = min((own["publish_s"].min() for own in every if own.size), default=0.0)
    trace = TraceFile(path)
    number = 0
    for rank, own in zip(ids, every, strict=True):
        trace.name_thread(rank, 0, "update thread")
        _updates(trace, rank, own, start)
        for worker in np.unique(own["worker"]):
            trace.name_thread(rank, 1 + int(worker), f"worker {worker}")
            _gradients(trace, rank, own[own["worker"] == worker], start)
        for g in own:
            number += 1
            trace.arrow(number, f"version {g['version']}, staleness {g['staleness']}", _ms(g["publish_s"], start),
                        _ms(g["use_s"], start) - 1e-3, (rank, 0), (rank, 0))
    trace.close()


def _updates(trace: TraceFile, rank: int, own: np.ndarray, start: float) -> None:
    """Each update, from the one before that used a gradient of this rank to its own publication."""
    moments, indices = np.unique(own["use_s"], return_index=True)
    begins = np.concatenate([own["publish_s"][:1], moments[:-1]])
    for begin, end, index in zip(begins, moments, indices, strict=True):
        trace.add(f"update {own['update'][index]}", "update", _ms(begin, start), 1e3 * (end - begin), rank=rank)


def _gradients(trace: TraceFile, rank: int, own: np.ndarray, start: float) -> None:
    """Each gradient, from the one before or the publication of its weights, whichever is later, to its deposit."""
    begins = np.maximum(np.concatenate([[-np.inf], own["deposit_s"][:-1]]), own["publish_s"])
    for g, begin in zip(own, begins, strict=True):
        trace.add(f"gradient of version {g['version']}", "gradient", _ms(begin, start),
                  1e3 * float(g["deposit_s"] - begin), rank=rank, thread=1 + int(g["worker"]),
                  staleness=int(g["staleness"]), used_by=int(g["update"]))


def _ms(moment_s: float, start_s: float) -> float:
    return 1e3 * float(moment_s - start_s)
