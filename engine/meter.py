"""Loss and speed of the steps made so far."""

from __future__ import annotations

UNTIMED_STEPS = 2  # the first ones of a process compile kernels, time algorithms and fill caches


class Meter:
    """Means over the steps since the last look, and the speed of the process without its first two steps."""

    def __init__(self) -> None:
        self.steps = 0
        self._recent = [0.0, 0.0, 0.0]  # loss sum, samples, seconds
        self._first = [0.0, 0.0]  # samples, seconds
        self._timed = [0.0, 0.0]

    def add(self, loss_sum: float, samples: int, seconds: float) -> None:
        """Count one step."""
        self.steps += 1
        _accumulate(self._recent, loss_sum, samples, seconds)
        _accumulate(self._first if self.steps <= UNTIMED_STEPS else self._timed, samples, seconds)

    def take(self) -> tuple[float, float]:
        """(mean loss of a sample, images a second) since the last take."""
        loss_sum, samples, seconds = self._recent
        self._recent = [0.0, 0.0, 0.0]
        return loss_sum / samples, samples / seconds

    @property
    def images_per_s(self) -> float:
        """Images a second after the first two steps, or of those when there are no more; 0 without a step."""
        samples, seconds = self._timed if self._timed[0] else self._first
        return samples / seconds if seconds else 0.0


def _accumulate(sums: list[float], *values: float) -> None:
    for i, value in enumerate(values):
        sums[i] += value
