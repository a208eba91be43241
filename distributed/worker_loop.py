"""Algorithm 1 of Oyama et al. 2016: one device's thread, fetch weights -> gradient -> deposit, again and again."""

from __future__ import annotations

from .buffers import Deposit, GradientBuffer, VersionedWeights
from .gate import Gate
from .options import Options
from .pulse import LOCAL, Pulse
from .telemetry import Clock
from .worker import GradientWorker


class WorkerLoop:
    """What worker `index` of this rank does in its thread."""

    def __init__(self, index: int, worker: GradientWorker, weights: VersionedWeights, buffer: GradientBuffer,
                 gate: Gate, options: Options, clock: Clock, keep_state: bool) -> None:
        """`keep_state`: each gradient carries the worker's state after it, for checkpoints."""
        self._index, self._worker, self._weights, self._buffer = index, worker, weights, buffer
        self._gate, self._options, self._clock, self._keep_state = gate, options, clock, keep_state
        self._known = -1  # version that the device holds
        self._followed = 0
        self.division = (0, 0, 0, 0)  # index, first share of this rank, shares, samples: set by the update thread

    def run(self, pulse: Pulse) -> None:
        """Iterate until the segment is over; raises what the worker raises."""
        try:
            while self._iterate(pulse):
                pass
        finally:
            pulse.enter("end", 0, LOCAL)

    def _iterate(self, pulse: Pulse) -> bool:
        worker, clock = self._worker, self._clock
        clock.restart()
        pulse.enter("wait for a version", 0, LOCAL)
        if not self._gate.admit(self._index):
            return False
        clock.lap("wait")
        self._follow_division()
        pulse.enter("fetch weights", self._known)
        read = self._weights.fetch(worker, self._known, clock)
        self._known = read.version
        pulse.enter("compute gradient", read.version + 1)
        loss, samples = worker.compute()
        clock.lap("compute_gradient")
        if samples:
            entry = Deposit(self._index, read.version, 0, samples, loss, self._followed, read.at_s,
                            state=worker.state() if self._keep_state else None)
            pulse.enter("deposit gradient", read.version + 1)
            scale = self._options.scale
            self._buffer.deposit(worker, entry, lambda late: scale(read.samples, read.version, late), clock)
        self._split_terms()
        clock.finish()
        self._gate.land(self._index, samples)
        return True

    def _follow_division(self) -> None:
        """Take this worker's new share of the data if a rank has died."""
        index, share, shares, samples = self.division
        if index != self._followed:
            self._worker.divide(share + self._index, shares, samples)
            self._followed = index

    def _split_terms(self) -> None:
        """Move what the worker can tell apart from compute() and deposit() to terms of its own."""
        times: dict[str, float] = getattr(self._worker, "times", {})
        for term, seconds in times.items():
            whole = "update_gradient" if term == "compute_update_val" else "compute_gradient"
            self._clock.move(whole, term, seconds)
