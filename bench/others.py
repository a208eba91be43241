"""What other programs take of the processors while something is measured."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..distributed.ranks import Comm

CALM = 0.05  # share of a machine's processors that others may take from a measurement


class Watch:
    """Counts seconds of processors from when it is made."""

    def __init__(self) -> None:
        self._begin = _now()

    def counted(self) -> np.ndarray:
        """(3,) float64: busy ones of the machine; those of this process and of what it has started and ended; all."""
        return _now() - self._begin

    def share(self, comm: Comm) -> float:
        """Part of all processors' time that no rank has used, on the host where that is most; a collective."""
        rows = comm.gather_all(self.counted().tolist())
        return max(_share(rows[np.array(comm.hosts) == host]) for host in set(comm.hosts))


def others_share(call: Callable[[], None]) -> float:
    """Part of all processors' time during `call` that neither this process nor what it started has used."""
    watch = Watch()
    call()
    return _share(watch.counted()[None])


def warn(share: float) -> None:
    """Say on standard error that times are upper bounds, where others have taken too much."""
    if share > CALM:
        print(f"warning: times are upper bounds: other programs took {share:.0%} of the processors meanwhile",
              file=sys.stderr)


def _share(rows: np.ndarray) -> float:
    """Of one host, whose ranks have counted `rows` (ranks, 3)."""
    busy, _, every = rows[0]
    return float((busy - rows[:, 1].sum()) / every)


def _now() -> np.ndarray:
    return np.array([_busy_seconds(), sum(os.times()[:4]), time.perf_counter() * (os.cpu_count() or 1)])


def _busy_seconds() -> float:
    """Of all processors since the machine was started, what its host took from it counted in."""
    user, nice, system, _, _, irq, softirq, steal = Path("/proc/stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / os.sysconf("SC_CLK_TCK")
