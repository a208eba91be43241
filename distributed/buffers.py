"""The shared state of the asynchronous loop: gradient buffers and versioned weights, two small locked classes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .telemetry import Clock
from .worker import GradientWorker

TAIL = 32  # floats after the n_params of every summed buffer, for the progress of the job (see progress.py)


@dataclass(slots=True)
class Deposit:
    """One gradient: who computed it from which version of the weights, and which update uses it."""

    worker: int
    version: int
    update: int
    samples: int
    loss: float  # sum over the samples
    division: int = 0  # how often the data had been divided anew before it
    read_s: float = 0.0  # moments in the clock of time.perf_counter(): publication of `version`, and deposit
    deposit_s: float = 0.0
    state: dict[str, Any] | None = field(default=None, repr=False)  # of the worker after it

    @property
    def staleness(self) -> int:
        """Updates between the version it was computed from and the update that uses it (0: the very next)."""
        return self.update - 1 - self.version


class GradientBuffer:
    """GradBuf_t: what worker t has computed since the update thread last came by (Algorithms 1 and 2)."""

    def __init__(self, n_params: int, version: int) -> None:
        self._n = n_params
        self._array = np.zeros(n_params + TAIL, np.float32)
        self._lock = threading.Lock()
        self._update = version + 1  # the update that will use what is deposited now
        self._deposits: list[Deposit] = []

    def filled(self) -> bool:
        """Return whether a gradient waits here to be collected."""
        return bool(self._deposits)

    def deposit(self, worker: GradientWorker, entry: Deposit, scale: Callable[[int], float], clock: Clock) -> None:
        """Add scale(staleness) * gradient of `worker`; `entry.update` becomes the update that will use it.

        Visits and deposits exclude each other, so the staleness is exact, not an estimate.
        """
        with self._lock:
            clock.lap("lock_gradient")
            entry.update = self._update
            entry.deposit_s = time.perf_counter()
            deposits, self._deposits = self._deposits, []  # a deposit that fails leaves the buffer empty
            worker.deposit(self._array[:self._n], bool(deposits), scale(entry.staleness))
            deposits.append(entry)
            self._deposits = deposits
            clock.lap("update_gradient")

    def collect(self, send: np.ndarray, first: bool, update: int, clock: Clock) -> tuple[np.ndarray, list[Deposit]]:
        """Take what is there for `update` and mark the buffer empty.

        `send` (n_params + TAIL,) float32: added to, or, if `first`, traded for the buffer's own array, which
        costs nothing. Returns the array that now holds the sum, and what is in it (nothing: `send` untouched).
        """
        with self._lock:
            clock.lap("lock_gradient")
            self._update = update + 1
            deposits, self._deposits = self._deposits, []
            if deposits and first:
                send, self._array = self._array, send
            elif deposits:
                np.add(send, self._array, out=send)
            clock.lap("sum_gradient")
        return send, deposits


class Published(NamedTuple):
    """Which weights these are: version, samples that the whole job had used, moment of publication (s)."""

    version: int
    samples: int
    at_s: float


class VersionedWeights:
    """LatestWeights: every version is a whole buffer, published by trading three buffers round.

    The version before is kept, so DeltaWeights = latest - previous is known everywhere and nothing is
    lost with the rank whose slice of the momentum dies.
    """

    def __init__(self, weights: np.ndarray, momentum: np.ndarray | None = None, version: int = 0,
                 samples: int = 0) -> None:
        if weights.dtype != np.float32 or weights.ndim != 1:
            raise TypeError(f"weights: expected a flat float32 array, got {weights.dtype} of shape {weights.shape}")
        if momentum is not None and momentum.shape != weights.shape:
            raise ValueError(f"momentum: expected shape {weights.shape}, got {momentum.shape}")
        self.n_params = weights.size
        self._latest, self._previous, self._spare = (np.zeros(weights.size + TAIL, np.float32) for _ in range(3))
        self._latest[:weights.size] = weights
        self._first_momentum = None if momentum is None else momentum.astype(np.float32)
        self._first_version = version
        self._published = Published(version, samples, time.perf_counter())
        self._lock = threading.Lock()

    @property
    def published(self) -> Published:
        """What was published last."""
        return self._published

    @property
    def latest(self) -> np.ndarray:
        """The published buffer (n_params + TAIL,) float32; for the update thread, which alone publishes."""
        return self._latest

    @property
    def spare(self) -> np.ndarray:
        """The buffer (n_params + TAIL,) float32 to receive the next version in; for the update thread."""
        return self._spare

    def fetch(self, worker: GradientWorker, known: int, clock: Clock) -> Published:
        """Give `worker` the latest weights if they are newer than version `known`."""
        with self._lock:
            clock.lap("lock_weights")
            if self._published.version > known:
                worker.fetch(self._latest[:self.n_params])
            clock.lap("fetch_weights")
            return self._published

    def publish(self, samples: int, clock: Clock) -> None:
        """Make `spare` the latest version; the version before the last becomes the new spare."""
        with self._lock:
            clock.lap("lock_weights")
            self._latest, self._previous, self._spare = self._spare, self._latest, self._previous
            self._published = Published(self._published.version + 1, samples, time.perf_counter())
            clock.lap("update_weights")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let nobody fetch or publish inside."""
        with self._lock:
            yield

    def delta(self, part: slice, out: np.ndarray) -> None:
        """Write the slice `part` of DeltaWeights, the last change of the weights, to `out` float32."""
        if self._published.version > self._first_version:
            np.subtract(self._latest[part], self._previous[part], out=out)
        elif self._first_momentum is None:
            out.fill(0.0)
        else:
            np.copyto(out, self._first_momentum[part])

    def snapshot(self) -> tuple[np.ndarray, np.ndarray, Published]:
        """Return copies of weights and momentum, (n_params,) float32 each, and which version they are."""
        momentum = np.empty(self.n_params, np.float32)
        with self._lock:
            self.delta(slice(0, self.n_params), momentum)
            return self._latest[:self.n_params].copy(), momentum, self._published
