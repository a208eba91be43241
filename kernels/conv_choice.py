"""The measured choice between convolution algorithms, remembered in memory and in the cache folder."""

from __future__ import annotations

import functools
import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from . import host_gemm, source
from .device import Device

TIMED_CALLS, MOST_CALLS = 3, 12  # of each algorithm, the best counts; more than three where they are close
TIMED_SECONDS = 0.5  # slow layers are not timed for longer
# Where one of these texts has changed, choices are measured afresh.
TIMED_TEXTS = ("im2col.cu", "conv.cu", *host_gemm.FILES)
A = TypeVar("A")


def fastest(device: Device, candidates: Sequence[A], call: Callable[[A], None]) -> A:
    """The candidate whose call takes least time, device synchronised; one untimed call of each goes first."""
    for candidate in candidates:
        call(candidate)
    times: list[list[float]] = [[] for _ in candidates]
    begin = time.perf_counter()
    while not _decided(times, time.perf_counter() - begin):
        for candidate, seconds in zip(candidates, times, strict=True):
            seconds.append(_seconds(device, call, candidate))
    return candidates[min(range(len(times)), key=lambda i: min(times[i]))]


def _decided(times: list[list[float]], elapsed: float) -> bool:
    """Whether the best one's usual time beats all others' best, so that a busy machine is no excuse, or time is up."""
    calls = len(times[0])
    if calls < TIMED_CALLS:
        return bool(calls) and elapsed > TIMED_SECONDS
    best, *others = sorted(times, key=min)
    return calls >= MOST_CALLS or elapsed > TIMED_SECONDS or all(median(best) < min(other) for other in others)


def _seconds(device: Device, call: Callable[[A], None], candidate: A) -> float:
    device.synchronize()
    begin = time.perf_counter()
    call(candidate)
    device.synchronize()
    return time.perf_counter() - begin


def device_tag(device: Device) -> str:
    """What a time depends on: the device's description (processor, threads, mode) without its number."""
    return device.kind + device.describe().removeprefix(device.name)


class Choices:
    """Table of key -> algorithm, in memory and in the cache folder.

    Every entry that a process used is in `table()`, so that a run can keep it and a resumed run can `pin` it:
    the same algorithms then, and so the same bytes, whatever the cache says by now. A missing, corrupt or
    read-only cache costs a measurement, never an error. Safe for threads and for many ranks: the file is
    replaced as a whole, and an entry lost between two ranks is only measured again.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.measuring = threading.Lock()
        self._folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, str] | None = None
        self._used: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        """Algorithm for `key`, or None when it was never measured here."""
        with self._lock:
            if self._known is None:
                self._known = self._read()
            algo = self._used.get(key) or self._known.get(key)
            if algo:
                self._used[key] = algo
            return algo

    def put(self, key: str, algo: str) -> None:
        """Remember a measured choice, here and in the cache folder."""
        with self._lock:
            self._used[key] = algo
            self._known = {**self._read(), key: algo}
            self._write(self._known)

    def table(self) -> dict[str, str]:
        """Choices that this process has used, by key."""
        with self._lock:
            return dict(self._used)

    def pin(self, table: dict[str, str]) -> None:
        """Use these choices from now on, before those of the cache."""
        with self._lock:
            self._used.update(table)

    def _path(self) -> Path:
        return (self._folder or source.cache_folder()) / f"conv-{_texts_digest()}.json"

    def _read(self) -> dict[str, str]:
        try:
            table: Any = json.loads(self._path().read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(table, dict):
            return {}
        return {k: v for k, v in table.items() if isinstance(v, str)}

    def _write(self, table: dict[str, str]) -> None:
        try:
            self._path().parent.mkdir(parents=True, exist_ok=True)
            source.replace_file(self._path(), json.dumps(table, indent=1, sort_keys=True).encode())
        except OSError:
            return  # a read-only or full cache folder only costs the next process a measurement


CHOICES = Choices()


@functools.cache
def _texts_digest() -> str:
    return hashlib.sha256("".join(map(source.read, TIMED_TEXTS)).encode()).hexdigest()[:16]
