"""What goes wrong on purpose or by itself: stalled threads, signals, and the drills of --inject."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .ranks import Comm, label
from .worker import GradientWorker

LOCAL, RANKS = "local", "ranks"
KINDS = ("kill-rank", "delay-rank", "nan-grad", "raise-worker")


class Pulse:
    """What one thread does and since when: written by that thread, read by the watch."""

    def __init__(self, thread: str) -> None:
        self.thread = thread
        self._now = ("start", 0, LOCAL, time.monotonic())

    def enter(self, operation: str, update: int, waits_for: str = "") -> None:
        """Say what begins now, for which update, and whether it only waits: for LOCAL threads or other RANKS."""
        self._now = (operation, update, waits_for, time.monotonic())

    def read(self) -> tuple[str, int, str, float]:
        """Return operation, update, what it waits for, and for how many seconds it has lasted."""
        operation, update, waits_for, since = self._now
        return operation, update, waits_for, time.monotonic() - since


class Watch:
    """The watchdog of one rank: says who and what is late when nothing moves."""

    def __init__(self, comm: Comm, limit_s: float) -> None:
        self._comm, self._limit_s = comm, limit_s
        self._said_here = -1
        self.pulses: list[Pulse] = []

    def pulse(self, thread: str) -> Pulse:
        """Return the pulse of a new thread."""
        self.pulses.append(Pulse(thread))
        return self.pulses[-1]

    def check(self) -> None:
        """Raise RuntimeError naming rank, host, thread and operation of what is stalled.

        A rank that only waits for others says so at half the limit and calls the roll a little after it, when
        a rank that still can has named itself.
        """
        if not self._limit_s:
            return
        for pulse in self.pulses:
            operation, update, waits_for, age = pulse.read()
            what = f"thread {pulse.thread}: {operation}, update {update}, for {age:.1f} s (limit {self._limit_s:g} s)"
            if not waits_for and age > self._limit_s:
                raise RuntimeError(f"stalled: {label(self._comm)}: {what}")
            if waits_for == RANKS and age > self._limit_s / 2 and self._said_here != update:
                self._said_here = update
                self._comm.here(update)
            if waits_for == RANKS and age > 1.1 * self._limit_s:
                absent = ", ".join(self._comm.absent(update)) or "nobody"
                raise RuntimeError(f"stalled: {absent} does not answer the roll call of {label(self._comm)}: {what}")
        if self.pulses and all(p.read()[2] == LOCAL and p.read()[3] > 2 * self._limit_s for p in self.pulses):
            raise RuntimeError(f"stalled: {label(self._comm)}: all threads wait for each other: "
                               f"{', '.join(f'{p.thread}: {p.read()[0]}' for p in self.pulses)}")


@contextmanager
def signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle(number)` for SIGINT and SIGTERM inside; a second one does what it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def once(number: int, frame: Any) -> None:
        signal.signal(number, before[signal.Signals(number)])
        handle(number)

    try:
        for number in numbers:
            signal.signal(number, once)
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])


@dataclass(frozen=True)
class Fault:
    """One drill: `kind` on `rank` (its number at the start), at the first chance from `update` on."""

    kind: str
    rank: int
    update: int
    worker: int = 0
    seconds: float = 5.0


def parse_fault(text: str) -> Fault:
    """Read KIND=RANK@update=U[,worker=T][,seconds=S], KIND one of KINDS. Raises ValueError."""
    match = re.fullmatch(r"([a-z-]+)=(\d+)@update=(\d+)((?:,(?:worker=\d+|seconds=\d+(?:\.\d+)?))*)", text)
    if not match or match[1] not in KINDS:
        raise ValueError(f"inject: expected KIND=RANK@update=U[,worker=T][,seconds=S] with KIND one of "
                         f"{', '.join(KINDS)}, got {text!r}")
    more = dict(item.split("=") for item in match[4].split(",") if item)
    return Fault(match[1], int(match[2]), int(match[3]), int(more.get("worker", 0)), float(more.get("seconds", 5)))


class Drills:
    """The drills of one rank, each done once."""

    def __init__(self, faults: list[Fault], rank: int) -> None:
        self.open = [fault for fault in faults if fault.rank == rank]

    def due(self, kind: str, update: int, worker: int = 0) -> Fault | None:
        """Return the drill of this kind that is due, and strike it off."""
        for fault in self.open:
            if fault.kind == kind and update >= fault.update and fault.worker == worker:
                self.open.remove(fault)
                return fault
        return None

    def before_exchange(self, update: int) -> None:
        """Kill this process, or be late, when the gradients are collected and nothing is sent yet."""
        if self.due("kill-rank", update):
            os.kill(os.getpid(), signal.SIGKILL)
        late = self.due("delay-rank", update)
        if late:
            time.sleep(late.seconds)


class DrilledWorker:
    """A worker that raises, or gives a gradient that is not a number, when its drill is due."""

    def __init__(self, worker: GradientWorker, drills: Drills, index: int, now: Callable[[], int]) -> None:
        self._worker, self._drills, self._index, self._now = worker, drills, index, now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def compute(self) -> tuple[float, int]:
        """Compute, or raise."""
        if self._drills.due("raise-worker", self._now(), self._index):
            raise RuntimeError(f"injected: worker {self._index} raises at update {self._now()}")
        return self._worker.compute()

    def deposit(self, buffer: np.ndarray, add: bool, scale: float) -> None:
        """Deposit, and spoil one element."""
        self._worker.deposit(buffer, add, scale)
        if self._drills.due("nan-grad", self._now(), self._index):
            buffer[0] = np.nan
