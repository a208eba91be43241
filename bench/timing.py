"""Timing that waits for the device: cold caches, interleaved rounds, medians with their spread.

`measure` is for single calls; `Spread` and the devices' own marks (mark, elapsed_ms) also serve whoever times a whole
step. Nothing here believes a number: `Ceilings.refuse` (ceilings.py) turns down what no memory or unit can have done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..kernels import reduce
from ..kernels.device import Device

LEAST_REPEATS, MOST_REPEATS = 5, 200
Call = Callable[[int], None]  # of a round number, so that the rounds can take different arrays
FLUSH_ROWS = {"host": 32, "cuda": 4096}  # enough for all threads


@dataclass(frozen=True)
class Spread:
    """Milliseconds of repeated measurements: median, minimum, median absolute deviation from it, and how many."""

    median: float
    least: float
    mad: float
    repeats: int

    @classmethod
    def of(cls, samples_ms: Sequence[float] | np.ndarray) -> Spread:
        """Spread of one or more samples."""
        samples = np.asarray(samples_ms, np.float64)
        middle = float(np.median(samples))
        return cls(middle, float(samples.min()), float(np.median(abs(samples - middle))), samples.size)


@dataclass(frozen=True)
class Times:
    """What was seen of one call, in milliseconds.

    first: its very first run, with compiling or loading whatever was not there; device (repeats,): between marks around
    the call in the device's queue; launch (repeats,): until the call returned to the thread that made it.
    """

    first: float
    device: np.ndarray
    launch: np.ndarray


class Flush:
    """Pushes all else out of the caches by reading twice their size; the lines it leaves are clean, so cost nothing."""

    def __init__(self, device: Device, cache_bytes: int) -> None:
        rows = FLUSH_ROWS[device.kind]
        self._device = device
        self._scratch = device.zeros((rows, max(1, 2 * cache_bytes // (4 * rows))))
        self._sums = device.empty(rows)

    def __call__(self) -> None:
        reduce.row_sum(self._device, self._scratch, self._sums)


def measure(device: Device, calls: Sequence[Call], before: Callable[[], None], *, seconds: float,
            repeats: int | None = None) -> list[Times]:
    """Time `calls` in rounds: one after the other, so that whatever else the machine does meets all of them alike.

    before() runs untimed ahead of every call. Rounds go on for about `seconds` for each call (5 to 200 rounds), or are
    exactly `repeats`. The first run of each call and one warm-up round are not among the samples.
    """
    first = [_seconds(device, call, 0) * 1e3 for call in calls]
    for call in calls:
        _seconds(device, call, 1)
    samples: list[tuple[list[float], list[float]]] = [([], []) for _ in calls]
    begin, number = time.perf_counter(), 0
    while not _enough(number, time.perf_counter() - begin, seconds * len(calls), repeats):
        for call, (device_ms, launch_ms) in zip(calls, samples, strict=True):
            before()
            on_device, launch = timed(device, call, number)
            device_ms.append(on_device)
            launch_ms.append(launch)
        number += 1
    return [Times(f, np.array(d), np.array(h)) for f, (d, h) in zip(first, samples, strict=True)]


def timed(device: Device, call: Call, number: int) -> tuple[float, float]:
    """(milliseconds on the device, milliseconds until the call returned) of one call.

    Nothing is waited for before the first mark: what is still queued there keeps a GPU busy while the launch is
    prepared, so that the marks enclose the work and not the wait for the launch.
    """
    first = device.mark()
    begin = time.perf_counter()
    call(number)
    launched = time.perf_counter()
    return device.elapsed_ms(first, device.mark()), 1e3 * (launched - begin)


def _seconds(device: Device, call: Call, number: int) -> float:
    device.synchronize()
    begin = time.perf_counter()
    call(number)
    device.synchronize()
    return time.perf_counter() - begin


def _enough(done: int, elapsed_s: float, seconds: float, repeats: int | None) -> bool:
    if repeats is not None:
        return done >= repeats
    return done >= MOST_REPEATS or (done >= LEAST_REPEATS and elapsed_s >= seconds)
