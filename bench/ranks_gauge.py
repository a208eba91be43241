"""Seconds of the Allreduce between the ranks of a job, of all of them and of the first few, while devices are busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from ..distributed.ranks import Comm
from ..kernels.device import Device
from .fit import fit_allreduce
from .machine import Allreduce

LEAST_CALLS, MOST_CALLS = 5, 100
BUSY_SIZE = 256  # m, n, k of the products that keep a device busy
COPY_DOUBLINGS = 2.0  # Allreduce of each doubling of the nodes over the copy of one: where there is no other node


def measure_allreduce(comm: Comm, device: Device | None, parameters: Iterable[int], seconds: float,
                      report: Callable[[], None] = lambda: None) -> Allreduce:
    """Fit the Allreduce of groups of 1, 2, 4, ... and all ranks, for some counts of parameters; a collective.

    device: kept busy on every rank meanwhile, where devices and update threads share cores; None: nothing else runs.
    With one rank alpha can only be guessed: the residual says 100%.
    """
    nodes, counts, times = [], [], []
    for size in group_sizes(comm.size):
        group = comm.first(size)
        for count in sorted(set(parameters)):
            taken = _seconds(group, device, count, seconds) if group else 0.0
            nodes.append(size)
            counts.append(count)
            times.append(float(comm.gather_all([taken])[0, 0]))
            report()
    fitted = fit_allreduce(nodes, counts, times)
    return fitted if comm.size > 1 else Allreduce(COPY_DOUBLINGS * fitted.beta, fitted.beta, 0.0, 1.0)


def group_sizes(size: int) -> list[int]:
    """1, 2, 4, ... and `size`."""
    return sorted({size, *(1 << i for i in range(size.bit_length()) if 1 << i <= size)})


def _seconds(group: Comm, device: Device | None, count: int, seconds: float) -> float:
    """Mean of the bulk of the calls, each from the moment at which all ranks are there."""
    send, recv, ready = np.ones(count, np.float32), np.empty(count, np.float32), np.zeros(1)
    times: list[float] = []
    with busy(device):
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


@contextmanager
def busy(device: Device | None) -> Iterator[None]:
    """Keep a device at work inside."""
    if device is None:
        yield
        return
    a, b, c = (device.zeros((BUSY_SIZE, BUSY_SIZE)) for _ in range(3))
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            device.sgemm(a, b, c)
            device.synchronize()

    thread = threading.Thread(target=work, name="busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
