"""Seconds of the Allreduce between the ranks of a job, of all of them and of the first few, nothing else running."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from ..distributed.ranks import Comm
from .fit import fit_allreduce
from .machine import Allreduce

LEAST_CALLS, MOST_CALLS = 5, 100
COPY_DOUBLINGS = 2.0  # Allreduce of each doubling of the nodes over the copy of one: where there is no other node


def measure_allreduce(comm: Comm, parameters: Iterable[int], seconds: float) -> Allreduce:
    """Fit the Allreduce of groups of 1, 2, 4, ... and all ranks, for some counts of parameters; a collective."""
    nodes, counts, times = [], [], []
    for size in group_sizes(comm.size):
        group = comm.first(size)
        for count in sorted(set(parameters)):
            taken = _seconds(group, count, seconds) if group else 0.0
            nodes.append(size)
            counts.append(count)
            times.append(float(comm.gather_all([taken])[0, 0]))
    return fitted_allreduce(nodes, counts, times)


def fitted_allreduce(nodes: Sequence[int], counts: Sequence[int], times: Sequence[float]) -> Allreduce:
    """Of `nodes` ranks and `counts` parameters in `times` s. With one rank alpha is a guess: the residual says 100%."""
    fitted = fit_allreduce(nodes, counts, times)
    return fitted if max(nodes) > 1 else Allreduce(COPY_DOUBLINGS * fitted.beta, fitted.beta, 0.0, 1.0)


def group_sizes(size: int) -> list[int]:
    """1, 2, 4, ... and `size`."""
    return sorted({size, *(1 << i for i in range(size.bit_length()) if 1 << i <= size)})


def _seconds(group: Comm, count: int, seconds: float) -> float:
    """Mean of the bulk of the calls, each from the moment at which all ranks are there."""
    send, recv, ready = np.ones(count, np.float32), np.empty(count, np.float32), np.zeros(1)
    times: list[float] = []
    begin, more = time.perf_counter(), True
    while more:
        group.meet(ready)
        start = time.perf_counter()
        group.allreduce(send, recv)
        times.append(time.perf_counter() - start)
        late = len(times) >= MOST_CALLS or time.perf_counter() - begin > seconds
        ready[0] = float(late and len(times) >= LEAST_CALLS)
        group.meet(ready)
        more = ready[0] == 0
    low, high = np.quantile(times[1:], [0.1, 0.9])
    return float(np.mean(np.clip(times[1:], low, high)))
