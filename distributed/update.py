"""Algorithm 2 of Oyama et al. 2016: collect -> allreduce -> momentum -> publish, one update at a time."""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from . import progress as agreed
from .buffers import TAIL, Deposit, GradientBuffer, VersionedWeights
from .options import Options
from .progress import Progress
from .pulse import RANKS, Pulse
from .ranks import AgreedError, Comm, RankFailed, label, slice_of
from .record import Record
from .recovery import Recovery, recover, settled
from .telemetry import Telemetry
from .transport import HostTransport, Transport


class Updater:
    """Makes updates; the only caller of MPI while it is used.

    Every rank adds only its own slice of weights and momentum to what it sends, so that the sum over the
    ranks is W + momentum * DeltaW - rate * gradients, and the momentum work is divided by the ranks.
    """

    def __init__(self, comm: Comm, weights: VersionedWeights, buffers: list[GradientBuffer], options: Options,
                 telemetry: Telemetry, progress: Progress, record: Record | None = None,
                 redivide: Callable[[int, int, int], None] = lambda share, shares, samples: None,
                 transport: Transport | None = None) -> None:
        self.comm, self.weights, self.buffers, self.options = comm, weights, buffers, options
        self.progress = progress
        self.states: list[dict[str, Any]] = [{} for _ in buffers]  # of the workers, after their last gradient in it
        self.books = threading.Lock()  # published weights, progress and states change together under it
        self.stop_signal = 0  # what asked this rank for the end
        self.failed = False  # a worker of this rank has failed
        self._telemetry, self._clock = telemetry, telemetry.update_clock
        self._record, self._redivide = record, redivide
        self._transport = transport or HostTransport(comm, options.ordered)
        self._recovery: Recovery | None = None  # whose new group has not yet published
        self._refused = False  # the spare buffer holds an update that nobody publishes, and all must know it
        self._n = weights.n_params
        self._send = np.zeros(self._n + TAIL, np.float32)
        self._deposits: list[Deposit] = []
        self._weighed = 1.0
        self._total = np.zeros(1, np.float64)
        self._reslice()

    def _reslice(self) -> None:
        """Take this rank's 1/N slice of the weights, and of the momentum as the published versions tell it."""
        self._own = slice_of(self._n, self.comm.rank, self.comm.size)
        width = self._own.stop - self._own.start
        self._delta = np.empty(width, np.float32)
        self.weights.delta(self._own, self._delta)
        self._kept = np.empty(width if self.comm.can_shrink else 0, np.float32)

    def step(self, pulse: Pulse, before_exchange: Callable[[], None] = lambda: None) -> list[Deposit]:
        """Make the next update and publish it; return this rank's gradients in it.

        before_exchange() is called when they are collected and nothing has been sent. Raises AgreedError on
        all ranks alike (nothing is published then), RuntimeError for MPI, RankFailed without ULFM.
        """
        update = self.weights.published.version + 1
        pulse.enter("collect gradients", update)
        self._collect(update)
        if self._record:
            self._record.update(update, self._deposits)
        before_exchange()
        while not self._try_exchange(update, pulse):
            pass
        pulse.enter("publish weights", update)
        try:
            with self.books:
                return self._publish()
        except AgreedError:
            self._refused = True
            raise

    def _collect(self, update: int) -> None:
        self._deposits, self._weighed = [], 1.0
        for buffer in self.buffers:
            first = not self._deposits
            self._send, deposits = buffer.collect(self._send, first, update, self._clock)
            self._deposits += deposits
        if not self._deposits:
            self._send.fill(0.0)
        self._clock.lap("sum_gradient")

    def _try_exchange(self, update: int, pulse: Pulse) -> bool:
        """Fill the spare buffer with the next version; False: a rank died and the update must be made again."""
        added = False
        try:
            pulse.enter("wait for the other ranks", update, RANKS)
            self._total[0] = sum(d.samples for d in self._deposits)
            self.comm.meet(self._total)
            self._clock.lap("barrier")
            pulse.enter("allreduce", update, RANKS)
            self._weigh()
            self._add_own()
            added = True
            self._pack(update)
            self._transport.allreduce(self._send, self.weights.spare)
            if not agreed.complete(self.weights.spare[self._n:], update, self.comm.size):
                raise RankFailed(f"allreduce: not all ranks are in update {update} on {label(self.comm)}")
            self._clock.lap("allreduce")
            return True
        except RankFailed:
            if not self.comm.can_shrink:
                raise
            if added:
                self._send[self._own] = self._kept
            return self.survive()

    def _weigh(self) -> None:
        """Turn the gradient sum into its part of the mean over the mini-batch of all ranks."""
        if self.options.form == "mean" and self._total[0] > 0:
            # made again after a death, the weighting of the first attempt is replaced
            np.multiply(self._send, np.float32(self._weighed / self._total[0]), out=self._send)
            self._weighed = float(self._total[0])
        self._clock.lap("sum_gradient")

    def _add_own(self) -> None:
        """(SendBuf)_n += (OldWeights)_n + momentum * (DeltaWeights)_n."""
        mine, old = self._send[self._own], self.weights.latest[self._own]
        if self.comm.can_shrink:
            np.copyto(self._kept, mine)
        np.add(mine, old, out=mine)
        self._clock.lap("update_old_weights")
        np.multiply(self._delta, np.float32(self.options.momentum), out=self._delta)
        np.add(mine, self._delta, out=mine)
        self._clock.lap("add_momentum")

    def _pack(self, update: int) -> None:
        digest = zlib.crc32(self.weights.latest[:self._n].data) if self._checks(update) else None
        if self._record and digest is not None:
            self._record.digest(update - 1, digest)
        failed_id = self.comm.ids[self.comm.rank] if self.failed else -1
        agreed.pack(self._send[self._n:], self._deposits, update, self.stop_signal, failed_id, digest)

    def _checks(self, update: int) -> bool:
        return bool(self.options.check_every) and update % self.options.check_every == 0

    def survive(self, announce: bool = True) -> bool:
        """Go on without the dead; True: the spare buffer holds an update that this rank had missed."""
        weights, version = self.weights, self.weights.published.version
        newest = (version + 1, weights.spare) if self._refused else (version, weights.latest)
        result = recover(self.comm, *newest, weights.spare, len(self.buffers), announce)
        self._recovery = result
        self._reslice()
        if self._record:
            self._record.group(self.comm.ids, result.first)
        if self.comm.rank == 0:
            living = f"{self.comm.size} ranks go" if self.comm.size > 1 else "1 rank goes"
            print(f"sprint: {', '.join(result.dead)} died; {living} on with update {result.first}", file=sys.stderr,
                  flush=True)
        return result.adopted

    def _publish(self) -> list[Deposit]:
        """(DeltaWeights)_n <- (RecvBuf)_n - (OldWeights)_n; LatestWeights <- RecvBuf, unless it is no use."""
        recv = self.weights.spare
        update = self.weights.published.version + 1
        after = self.progress.after(recv[self._n:], self._checks(update))
        why = after.diverged(self.options.diverged_at)
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.dot(recv[:self._n], recv[:self._n])
        if not np.isfinite(square):
            why = why or "the weights would not be finite (or their squares overflow)"
        if why:
            raise AgreedError(self._divergence(why, after))
        np.subtract(recv[self._own], self.weights.latest[self._own], out=self._delta)
        self._clock.lap("update_momentum")
        self.weights.publish(after.samples, self._clock)
        self.progress = after
        for deposit in self._deposits:
            self.states[deposit.worker] = deposit.state or {}
        self._telemetry.used(self._deposits, after.minibatch)
        if self._recovery and update >= self._recovery.first:  # now all know the same number of samples
            self._redivide(self._recovery.share, self._recovery.shares, after.samples)
            self._recovery = None
        return self._deposits

    def _divergence(self, why: str, after: Progress) -> str:
        mine = self._telemetry.staleness.largest
        batch = self._telemetry.minibatch.mean
        return (f"diverged: {why} at update {after.version} ({after.samples} samples); staleness {after.staleness:.2f} "
                f"on average over {after.gradients} gradients (at most {mine} on {label(self.comm)}), mini-batch "
                f"{batch:.1f}; lower the rate, or use --staleness-lr, --max-staleness or --warmup-sync")

    def snapshot(self) -> tuple[np.ndarray, np.ndarray, Progress, list[dict[str, Any]]]:
        """Return copies of weights and momentum, (n_params,) float32, with the progress and states they belong to."""
        with self.books:
            weights, momentum, _ = self.weights.snapshot()
            return weights, momentum, self.progress, list(self.states)

    def finish(self) -> None:
        """Leave together: no rank goes before all living ones have published the last update.

        Workers that failed after the vote in it are told here. Raises RuntimeError for MPI, RankFailed without ULFM.
        """
        failed_rank = settled(self, self._late_failure)
        if self.progress.failed_rank == -1:
            self.progress = replace(self.progress, failed_rank=failed_rank)

    def _late_failure(self) -> int:
        """Return the rank of which a worker failed, as Progress.failed_rank has it; a collective."""
        votes = np.array([self.failed, self.failed * self.comm.ids[self.comm.rank]], np.float64)
        self.comm.meet(votes)
        return agreed.failed_rank(*votes)
