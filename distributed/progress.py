"""What all ranks agree on in the Allreduce itself: a few floats at the end of the summed buffer."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass, replace

import numpy as np

from .buffers import Deposit
from .ranks import AgreedError

SAMPLES, LOSS, GRADIENTS, STALENESS, STOPS, SIGNALS, ERRORS, ERROR_RANK, VERSION, RANKS, DIGEST = range(11)
NIBBLES = 8  # of a 32-bit digest; 4-bit pieces keep the sums of squares exact in float32
START_UPDATES = 5  # the mean loss of this many updates is "the start" for the divergence test
SMOOTHING = 0.9


@dataclass(frozen=True)
class Progress:
    """The state of the whole job after update `version`; equal on every rank."""

    version: int = 0
    samples: int = 0  # in all updates, over all ranks
    gradients: int = 0
    staleness_sum: int = 0
    loss_sum: float = 0.0  # over all samples
    minibatch: int = 0  # samples of the last update
    loss: float = math.nan  # mean per sample of the last update that had samples
    smooth_loss: float = math.nan
    start_loss: float = math.nan
    loss_updates: int = 0  # updates that had samples
    stop_signal: int = 0  # the signal that made a rank ask for the end
    failed_rank: int = -1  # a rank of which a worker failed, or -2: several

    @property
    def staleness(self) -> float:
        """Mean staleness over all gradients of all ranks, in updates."""
        return self.staleness_sum / self.gradients if self.gradients else 0.0

    def after(self, tail: np.ndarray, check: bool) -> Progress:
        """Read the summed `tail` (TAIL,) float32 of the next update.

        Raises AgreedError, equally on every rank, if (`check`) ranks held different weights.
        """
        version = self.version + 1
        if check:
            size = round(float(tail[RANKS]))  # of the group that summed it: an adopted update is of a larger one
            _same_digest(tail, size, self.version)
        samples, gradients = round(float(tail[SAMPLES])), round(float(tail[GRADIENTS]))
        mine = replace(self, version=version, samples=self.samples + samples, minibatch=samples,
                       gradients=self.gradients + gradients, stop_signal=_common_signal(tail),
                       staleness_sum=self.staleness_sum + round(float(tail[STALENESS])),
                       loss_sum=self.loss_sum + float(tail[LOSS]),
                       failed_rank=failed_rank(tail[ERRORS], tail[ERROR_RANK]))
        return mine._with_loss(float(tail[LOSS]) / samples) if samples else mine

    def _with_loss(self, loss: float) -> Progress:
        updates = self.loss_updates + 1
        if updates <= START_UPDATES:  # mean of the first few
            start = loss if updates == 1 else self.start_loss + (loss - self.start_loss) / updates
            return replace(self, loss=loss, smooth_loss=start, start_loss=start, loss_updates=updates)
        smooth = SMOOTHING * self.smooth_loss + (1 - SMOOTHING) * loss
        return replace(self, loss=loss, smooth_loss=smooth, loss_updates=updates)

    def diverged(self, factor: float) -> str:
        """Return why the run counts as diverged, or "": a loss that is not finite, or above factor * start."""
        if self.minibatch and not math.isfinite(self.loss):
            return f"the loss became {self.loss}"
        if factor and self.smooth_loss > factor * self.start_loss:
            return f"the loss {self.smooth_loss:.4g} is above {factor:g} times its start, {self.start_loss:.4g}"
        return ""


def pack(tail: np.ndarray, deposits: list[Deposit], version: int, stop_signal: int, failed_id: int,
         digest: int | None) -> None:
    """Fill this rank's part of `tail` (TAIL,) float32 for update `version`.

    stop_signal is 0 where none came, failed_id -1 where no worker failed.
    """
    tail.fill(0.0)
    tail[SAMPLES] = sum(d.samples for d in deposits)
    with np.errstate(over="ignore"):  # inf is what a loss beyond float32 should become
        tail[LOSS] = sum(d.loss for d in deposits)
    tail[GRADIENTS] = len(deposits)
    tail[STALENESS] = sum(d.staleness for d in deposits)
    tail[STOPS], tail[SIGNALS] = stop_signal > 0, stop_signal
    if failed_id >= 0:
        tail[ERRORS], tail[ERROR_RANK] = 1, failed_id
    tail[VERSION] = version % 4096
    tail[RANKS] = 1
    if digest is not None:
        nibbles = [(digest >> (4 * i)) & 15 for i in range(NIBBLES)]
        tail[DIGEST:DIGEST + NIBBLES] = nibbles
        tail[DIGEST + NIBBLES:DIGEST + 2 * NIBBLES] = np.square(nibbles)


def failed_rank(errors: float, ids: float) -> int:
    """Return Progress.failed_rank from the number of ranks of which a worker failed and the sum of their numbers."""
    return int(ids) if errors == 1 else -1 - int(errors > 1)


def complete(tail: np.ndarray, version: int, size: int) -> bool:
    """Return whether all `size` ranks are in the summed `tail` (TAIL,) float32, each with update `version`."""
    return bool(tail[RANKS] == size and tail[VERSION] == size * (version % 4096))


def _common_signal(tail: np.ndarray) -> int:
    votes, total = int(tail[STOPS]), int(tail[SIGNALS])
    return (signal.SIGINT if total == votes * signal.SIGINT else signal.SIGTERM) if votes else 0


def _same_digest(tail: np.ndarray, size: int, version: int) -> None:
    """Raise unless every nibble has variance 0 over the ranks: size * sum of squares = square of the sum."""
    sums = tail[DIGEST:DIGEST + NIBBLES].astype(np.float64)
    squares = tail[DIGEST + NIBBLES:DIGEST + 2 * NIBBLES].astype(np.float64)
    if (size * squares != sums * sums).any():
        raise AgreedError(f"update: expected equal weights on all {size} ranks at version {version}, got different "
                          "digests: a rank computes or receives wrong values")
