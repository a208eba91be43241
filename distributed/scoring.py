"""The score of the published weights on the test images, which all workers of all ranks share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..engine.evaluate import Score, evaluate
from ..engine.session import Session
from .data_parallel import first_share
from .ranks import Comm


class Scorer:
    """Scores on the devices of this rank's workers, which rest meanwhile."""

    def __init__(self, comm: Comm, sessions: list[Session]) -> None:
        self._comm, self._sessions = comm, sessions
        self._feeders = [session.feeder() for session in sessions]

    def __call__(self, weights: np.ndarray, at_most: int | None, stop: Callable[[], int]) -> tuple[Score | None, int]:
        """Score flat `weights` (n_params,) float32, which all ranks have alike; each sample counts once.

        A collective, whose result is the same on all ranks. at_most: about so many samples in all. stop() is the
        signal that asked this rank for the end, or 0. Returns the score, None if it was stopped, and the signal.
        """
        first, shares = first_share(self._comm, len(self._sessions))
        most = None if at_most is None else -(-at_most // shares)
        with ThreadPoolExecutor(len(self._sessions), "score") as pool:
            parts = list(pool.map(lambda t: self._part(t, weights, first + t, shares, most, stop),
                                  range(len(self._sessions))))
        mine = sum((part for part in parts if part), Score())
        rows = self._comm.gather_all([float(mine.samples), mine.loss_sum, float(mine.top1_count),
                                      float(mine.top5_count), float(stop())])
        samples, loss_sum, top1, top5, _ = rows.sum(axis=0)
        number = int(rows[:, 4].max())
        return (None if number else Score(int(samples), float(loss_sum), int(top1), int(top5))), number

    def _part(self, t: int, weights: np.ndarray, share: int, shares: int, at_most: int | None,
              stop: Callable[[], int]) -> Score | None:
        session = self._sessions[t]
        split = session.dataset.test
        session.device.copy(session.network.weights.flat, weights)
        if share >= len(split):  # fewer images than workers
            return Score()
        return evaluate(session.network, split, self._feeders[t], at_most=at_most, rank=share,
                        size=min(shares, len(split)), stop=lambda: stop() > 0)
