"""Who may go on: workers that wait for a version, and the update thread that waits for gradients.

With no bound and `min_gradients` 0 nobody ever waits, as in the paper. A bound S keeps every staleness at or below
S: a worker starts only if the earliest update that can use its gradient allows it, and the update thread waits
for a gradient that would be too old one update later. S = 0 is synchronous training.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Flight:
    filled: Callable[[], bool]  # is a gradient of this worker waiting to be collected?
    version: int
    flying: bool = False  # computes, or is certain to
    idle: bool = False  # had no samples: waits for the next version instead of spinning
    alive: bool = False


class Gate:
    """The waiting of one rank's workers and update thread, all under one condition."""

    def __init__(self, filled: list[Callable[[], bool]], bound: Callable[[int], int | None],
                 min_gradients: int) -> None:
        """`filled[t]` says whether buffer t holds a gradient; `bound(update)` is its largest staleness or None."""
        self._bound = bound
        self._min_gradients = min_gradients
        self._condition = threading.Condition()
        self._flights = [_Flight(f, 0) for f in filled]
        self._version = self._collected = 0
        self._closed = self._hurry = False

    def open(self, version: int) -> None:
        """Let a segment of the run begin at `version`, before its threads start."""
        with self._condition:
            self._version = self._collected = version
            self._closed = self._hurry = False
            for flight in self._flights:
                flight.alive, flight.idle = True, False
                flight.flying, flight.version = self._may_fly(flight), version

    def admit(self, worker: int) -> bool:
        """Wait until `worker` may compute from the latest version; False: the segment is over."""
        flight = self._flights[worker]
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self._may_fly(flight))
            if not self._closed:
                flight.flying, flight.version = True, self._version
            return not self._closed

    def _may_fly(self, flight: _Flight) -> bool:
        bound = self._bound(self._collected + 1)
        if flight.idle or bound is None:
            return not flight.idle
        earliest = self._collected - self._version  # its staleness in the next update that collects
        return earliest + flight.filled() <= bound

    def land(self, worker: int, samples: int) -> None:
        """Say that `worker` has deposited a gradient of `samples` samples (0: had nothing to give)."""
        with self._condition:
            self._flights[worker].flying, self._flights[worker].idle = False, samples == 0
            self._condition.notify_all()

    def leave(self, worker: int) -> None:
        """Say that `worker` will give no more in this segment."""
        with self._condition:
            self._flights[worker].flying = self._flights[worker].alive = False
            self._condition.notify_all()

    def hold(self, update: int) -> bool:
        """Wait until `update` may collect; what starts from now on aims at the one after it. False: closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._hurry or self._ready(update))
            self._collected = update
            self._condition.notify_all()
            return not self._closed

    def _ready(self, update: int) -> bool:
        bound = self._bound(update)
        if bound is not None and any(f.flying and update - f.version > bound for f in self._flights):
            return False
        votes = sum(f.alive and (f.idle or f.filled()) for f in self._flights)
        return votes >= min(self._min_gradients, sum(f.alive for f in self._flights))

    def published(self, version: int, last: bool) -> None:
        """Let the workers that waited for `version` go on, or, if `last`, end."""
        with self._condition:
            self._version, self._closed = version, self._closed or last
            for flight in self._flights:
                flight.idle = False
                if not last and flight.alive and not flight.flying and self._may_fly(flight):
                    flight.flying, flight.version = True, version  # the next hold counts on it
            self._condition.notify_all()

    def hurry(self) -> None:
        """Let the update thread pass without gradients from now on: the run is to end."""
        with self._condition:
            self._hurry = True
            self._condition.notify_all()

    def drain(self) -> None:
        """Wait until all workers have left, at the end of a segment; not when the run is to end."""
        with self._condition:
            self._condition.wait_for(lambda: self._hurry or not any(f.alive for f in self._flights))

    def close(self) -> None:
        """End all waiting and both loops: the segment is over."""
        with self._condition:
            self._closed = self._hurry = True
            self._condition.notify_all()
