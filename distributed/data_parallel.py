"""Synchronous data parallel training, `--algorithm sync`: the parts of SPRINT with the gate closed.

Every update has exactly one gradient of every worker of every rank, all computed from the version before, so it
equals one device on the union of the sub-batches up to the rounding of the sum. A worker whose share of the
batch is empty gives nothing and is not waited for; sums are over samples, so shares need not be even.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .options import Options
from .ranks import Comm, slice_of
from .sprint import Sprint
from .worker import GradientWorker


def data_parallel(comm: Comm, workers: Sequence[GradientWorker], weights: np.ndarray, options: Options,
                  **more: Any) -> Sprint:
    """Return the run of `workers` in lock-step; weights (n_params,) float32, `more` as for Sprint."""
    locked = replace(options, max_staleness=0, warmup_sync=0, staleness_rate=False,
                     min_gradients=max(1, len(workers)))
    return Sprint(comm, workers, weights, locked, **more)


def first_share(comm: Comm, workers: int) -> tuple[int, int]:
    """Return the first of this rank's shares of the data and the shares of the job: one per worker."""
    counts = comm.gather_all([float(workers)])[:, 0]
    return int(counts[:comm.rank].sum()), int(counts.sum())


def share_sizes(batch: int, shares: int) -> list[int]:
    """Divide `batch` samples into nearly equal shares; fewer samples than shares leave some empty."""
    if batch < 0 or shares < 1:
        raise ValueError(f"shares: expected batch >= 0 and shares >= 1, got {batch} and {shares}")
    pieces = [slice_of(batch, index, shares) for index in range(shares)]
    return [piece.stop - piece.start for piece in pieces]
