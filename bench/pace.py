"""Waits that make the real loops as fast as another machine: each piece lasts as long there, whatever it takes here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..distributed.telemetry import Clock
from .loops import Pieces

MOST_LATE_S = 0.05  # that later pieces make up for


class Pace:
    """The end of each piece of one thread: moments that follow each other, so that what came late is made up for.

    late_s: seconds by which pieces took longer here than they should and that nothing has made up for.
    """

    def __init__(self) -> None:
        self._debt = self.late_s = 0.0

    def fill(self, begin: float, seconds: float) -> None:
        """Wait until `seconds` after `begin`, less what earlier pieces were late."""
        due = begin + seconds - self._debt
        left = due - time.perf_counter()
        if left > 0:
            time.sleep(left)
        self._debt = max(0.0, time.perf_counter() - due)
        self.late_s += max(0.0, self._debt - MOST_LATE_S)
        self._debt = min(self._debt, MOST_LATE_S)


class EmulatedWorker:
    """A device whose gradients are waits and whose copies are real, of `n_params` float32 values.

    computes: seconds of ComputeGradient, one a turn; first_s: of an extra wait before the first turn. full: whether a
    gradient lies in its GradBuf, known to whoever holds that GradBuf.
    """

    def __init__(self, n_params: int, subbatch: int, pieces: Pieces, computes: Iterator[float], first_s: float) -> None:
        self.n_params, self.pace, self.full = n_params, Pace(), False
        self.times: dict[str, float] = {}
        self._subbatch, self._pieces, self._computes, self._first_s = subbatch, pieces, computes, first_s
        self._weights, self._gradient = np.zeros(n_params, np.float32), np.zeros(n_params, np.float32)

    def fetch(self, weights: np.ndarray) -> None:
        """Copy the weights (n_params,) float32, for as long as it takes there."""
        begin = time.perf_counter()
        np.copyto(self._weights, weights)
        self.pace.fill(begin, self._pieces.fetch)

    def compute(self) -> tuple[float, int]:
        """Wait for images and gradient."""
        begin, pieces = time.perf_counter(), self._pieces
        first, self._first_s = self._first_s, 0.0
        self.times |= {"load_image": pieces.load, "deform_image": pieces.deform}
        self.pace.fill(begin, first + pieces.load + pieces.deform + next(self._computes))
        return 1.0, self._subbatch

    def deposit(self, buffer: np.ndarray, add: bool, scale: float) -> None:
        """Write or add the gradient to `buffer` (n_params,) float32, for as long as it takes there."""
        begin, pieces = time.perf_counter(), self._pieces
        if add:
            np.add(buffer, self._gradient, out=buffer)
        else:
            np.copyto(buffer, self._gradient)
        self.times["compute_update_val"] = pieces.update_val
        self.pace.fill(begin, pieces.update_val + pieces.deposit)
        self.full = True

    def divide(self, share: int, shares: int, samples: int) -> None:
        """There are no data."""

    def state(self) -> dict[str, Any]:
        """Nothing to remember."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to go back to."""

    def close(self) -> None:
        """Nothing to release."""


class UpdatePace:
    """Fills the laps of an update thread's clock: the collecting of each GradBuf, and every other step."""

    def __init__(self, clock: Clock, workers: Sequence[EmulatedWorker], pieces: Pieces) -> None:
        self.pace = Pace()
        self._lap: Callable[[str], None] = clock.lap
        self._workers, self._pieces = workers, pieces
        self._visited, self._summed, self._collecting = 0, 0, 0.0
        self._steps = {"update_old_weights": pieces.old, "add_momentum": pieces.momentum_add,
                       "allreduce": pieces.reduce, "update_momentum": pieces.momentum,
                       "update_weights": pieces.publish}
        self._begin = time.perf_counter()
        clock.lap = self.lap  # type: ignore[method-assign]

    def lap(self, term: str) -> None:
        """End a term, not before its time. The lock of the GradBuf that is collected is held around its two laps."""
        if term == "lock_gradient":
            self._lap(term)
            self._begin, self._collecting = time.perf_counter(), self._collected()
            return
        seconds = self._steps.get(term, self._collecting if term == "sum_gradient" else 0.0)
        if seconds:
            self.pace.fill(self._begin, seconds)
        self._collecting = self._cleared() if term == "sum_gradient" else 0.0
        self._lap(term)
        self._begin = time.perf_counter()

    def _cleared(self) -> float:
        """Seconds of what follows a visit: clearing the sum when all have been visited and none was full, once."""
        done, self._visited = self._visited == len(self._workers), self._visited % len(self._workers)
        return float(self._pieces.clear) if done and not self._summed else 0.0

    def _collected(self) -> float:
        """Seconds to collect what lies in the GradBuf that is visited."""
        worker = self._workers[self._visited]
        if self._visited == 0:
            self._summed = 0
        self._visited += 1
        if not worker.full:
            return 0.0
        worker.full = False
        self._summed += 1
        return float(self._pieces.take if self._summed == 1 else self._pieces.add)
