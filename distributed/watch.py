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

from .launch import end_job
from .pulse import LOCAL, RANKS, Pulse
from .ranks import Comm, Stalled, label
from .worker import GradientWorker

KINDS = ("kill-rank", "delay-rank", "nan-grad", "raise-worker")
BEATS = 8  # signs of life within the limit
AFTER_S = 5.0  # how long a rank may take to save and to end the job before another one does it
JOIN_S = 5.0


class Watch:
    """The watchdog of one rank: says who and what is late when nothing moves.

    Ranks tell each other that they live. In a segment of the loops, Sprint.join() calls check(). Between segments the
    main thread may be deep in MPI or a file: `with watch:` has a thread of its own, which ends the job.
    """

    def __init__(self, comm: Comm, limit_s: float) -> None:
        self._comm, self.limit_s = comm, limit_s
        self.pulses: list[Pulse] = []
        self._used_s, self._used_at = 0.0, time.monotonic()  # processor time, and when there was more of it
        self._looked_at = self._awake_at = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def pulse(self, thread: str) -> Pulse:
        """Return the pulse of a new thread."""
        self.pulses.append(Pulse(thread))
        return self.pulses[-1]

    def __enter__(self) -> Watch:
        """Look at the main thread from now on, if others may wait for it."""
        if self._comm.size > 1:
            self._comm.pulse.enter("open", 0)
            self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._over.wait(min(1.0, self.limit_s / 50) or 1.0):
            try:
                self.check_main()
            except Stalled as error:
                end_job(self._comm, error)

    def check(self) -> None:
        """Raise Stalled naming rank, host, thread and operation of what is stalled in a segment."""
        if not self.limit_s:
            return
        self._look()
        for pulse in self.pulses:
            _, _, waits_for, age_s = self._read(pulse)
            if not waits_for and age_s > self.limit_s:
                raise self._stalled(pulse)
            if waits_for == RANKS:
                self._check_others(pulse)
        if self.pulses and all(p.read()[2] == LOCAL and self._read(p)[3] > 2 * self.limit_s for p in self.pulses):
            raise Stalled(f"stalled: {label(self._comm)}: all threads wait for each other: "
                          f"{', '.join(f'{p.thread}: {p.read()[0]}' for p in self.pulses)}")

    def check_main(self) -> None:
        """Raise Stalled for the main thread; one that works is waited for, however long it takes."""
        if not self.limit_s:
            return
        self._look()
        _, _, waits_for, age_s = self._read(self._comm.pulse)
        if waits_for == RANKS:
            self._check_others(self._comm.pulse)
        elif not waits_for and min(age_s, self._idle_s()) > self.limit_s:
            raise self._stalled(self._comm.pulse)

    def _idle_s(self) -> float:
        """For how long neither this process, but for the calling thread, nor compilers that it ran have computed."""
        ended = os.times()
        used_s = time.process_time() - time.thread_time() + ended.children_user + ended.children_system
        if used_s > self._used_s + 1e-3 * self.limit_s:
            self._used_s, self._used_at = used_s, time.monotonic()
        return time.monotonic() - self._used_at

    def _read(self, pulse: Pulse) -> tuple[str, int, str, float]:
        operation, update, waits_for, age_s = pulse.read()
        return operation, update, waits_for, min(age_s, time.monotonic() - self._awake_at)

    def _look(self) -> None:
        """Tell the others. If nobody has looked for long, the whole process was stopped: that time does not count."""
        now = time.monotonic()
        if now > self._looked_at + self.limit_s / 2:
            self._awake_at = now
        self._looked_at = now
        reads = [self._read(pulse) for pulse in (self._comm.pulse, *self.pulses)]
        self._comm.beat(self.limit_s / BEATS, max((age for _, _, what, age in reads if what == RANKS), default=0.0))

    def _check_others(self, pulse: Pulse) -> None:
        """The first of the ranks that wait speaks at 1.1 times the limit, the others only if it does not."""
        quiet, limit_s, own = self._comm.heard(), self.limit_s, self._comm.rank
        awake_s = time.monotonic() - self._awake_at
        silent = [rank for rank, (silent_s, _) in enumerate(quiet) if min(silent_s, awake_s) > limit_s and rank != own]
        waiting = [rank for rank, (_, waited_s) in enumerate(quiet) if rank == own or waited_s > limit_s / 2]
        first = next(rank for rank in waiting if rank not in silent)
        if self._read(pulse)[3] < 1.1 * limit_s + (0.0 if own == first else max(0.4 * limit_s, AFTER_S)):
            return
        if silent:
            raise self._stalled(pulse, f"{', '.join(label(self._comm, r) for r in silent)} gives no sign of life to ")
        if all(waited_s > limit_s for rank, (_, waited_s) in enumerate(quiet) if rank != own):
            raise self._stalled(pulse, "all ranks wait for each other, as ")

    def _stalled(self, pulse: Pulse, cause: str = "") -> Stalled:
        operation, update, _, age_s = self._read(pulse)
        return Stalled(f"stalled: {cause}{label(self._comm)}: thread {pulse.thread}: {operation}, update {update}, "
                       f"for {age_s:.1f} s (limit {self.limit_s:g} s)")


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
