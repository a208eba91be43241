"""What all ranks measured, put together: staleness, mini-batch, and the terms of both loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .ranks import Comm
from .telemetry import UPDATE_TERMS, WORKER_TERMS, Histogram, Telemetry, whole_job


@dataclass(frozen=True)
class Measures:
    """Of the whole job since it started. worker_ms: mean iteration of a worker; update_ms: mean update of a rank."""

    staleness: Histogram
    minibatch: Histogram
    worker_ms: dict[str, float]
    update_ms: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """As it stands in metrics.jsonl; times in milliseconds."""
        return {"staleness_histogram": self.staleness.as_dict(), "minibatch_histogram": self.minibatch.as_dict(),
                "worker_ms": self.worker_ms, "update_ms": self.update_ms}


def gather(comm: Comm, telemetry: Telemetry) -> Measures:
    """Put together what every rank measured; a collective of the main threads."""
    iterations = [clock.iterations for clock in telemetry.worker_clocks]
    sums = np.zeros(len(WORKER_TERMS))
    for clock, count in zip(telemetry.worker_clocks, iterations, strict=True):
        sums += count * np.array(list(clock.mean_ms().values()))
    updates = list(telemetry.update_clock.mean_ms().values())
    rows = comm.gather_all([float(sum(iterations)), *sums.tolist(), *updates])
    workers = rows[:, 1:1 + len(WORKER_TERMS)].sum(axis=0) / max(1.0, rows[:, 0].sum())
    mean_update = rows[:, 1 + len(WORKER_TERMS):].mean(axis=0)
    return Measures(whole_job(telemetry.staleness, comm), telemetry.minibatch,
                    dict(zip(WORKER_TERMS, workers.tolist(), strict=True)),
                    dict(zip(UPDATE_TERMS, mean_update.tolist(), strict=True)))
