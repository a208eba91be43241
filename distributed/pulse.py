"""What a thread does and since when, for the watchdog."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

LOCAL, RANKS = "local", "ranks"


class Pulse:
    """What one thread does and since when: written by that thread, read by the watch."""

    def __init__(self, thread: str) -> None:
        self.thread = thread
        self._now = ("start", 0, LOCAL, time.monotonic())

    def enter(self, operation: str, update: int, waits_for: str = "") -> None:
        """Say what begins now, for which update, and whether it only waits: for LOCAL threads or other RANKS."""
        self._now = (operation, update, waits_for, time.monotonic())

    @contextmanager
    def within(self, operation: str, waits_for: str = "") -> Iterator[None]:
        """Do `operation` as a part of what goes on, which begins anew after it."""
        outer, update, waited_for, _ = self._now
        self.enter(f"{outer}: {operation}", update, waits_for)
        try:
            yield
        finally:
            self.enter(outer, update, waited_for)

    def read(self) -> tuple[str, int, str, float]:
        """Return operation, update, what it waits for, and for how many seconds it has lasted."""
        operation, update, waits_for, since = self._now
        return operation, update, waits_for, time.monotonic() - since
