"""The rules of a run: learning rate, momentum, gradient form, bounds on staleness, what is checked and saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FORMS = ("sum", "mean")


@dataclass(frozen=True)
class Options:
    """What every rank must have alike.

    rate: learning rate as a function of the samples that the whole job had used when the weights were read, and of
        their version.
    form: "sum": W <- W + momentum * DeltaW - rate * sum of the mini-batch's gradients (Oyama et al. 2016, eq. 1);
        "mean": that sum divided by the samples of the mini-batch over all ranks, whatever each contributed.
    """

    rate: Callable[[int, int], float]
    momentum: float = 0.9
    form: str = "sum"
    max_staleness: int | None = None  # updates; None: no bound, 0: synchronous
    staleness_rate: bool = False  # divide the rate by the staleness of the gradient
    warmup_sync: int = 0  # updates at the start that are synchronous
    min_gradients: int = 1  # gradients of this rank that an update waits for; 0: the paper's free-running loop
    check_every: int = 100  # updates between comparisons of the weights of all ranks; 0: never
    save_every: int = 0  # updates between checkpoints; 0: at the end only
    diverged_at: float = 10.0  # times the loss at the start; 0: only a loss that is not finite counts
    stall_s: float = 120.0  # seconds without progress that count as a stall; 0: for ever
    ordered: bool = False  # sum over the ranks in rank order, so that a replay can repeat it

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"gradient form: expected one of {', '.join(FORMS)}, got {self.form!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: expected 0 <= momentum < 1, got {self.momentum}")
        for name in ("max_staleness", "warmup_sync", "min_gradients", "check_every", "save_every", "diverged_at",
                     "stall_s"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name.replace('_', '-')}: expected 0 or more, got {value}")

    def bound(self, update: int) -> int | None:
        """Return the largest staleness allowed in `update`, None for no bound."""
        return 0 if update <= self.warmup_sync else self.max_staleness

    def scale(self, samples: int, version: int, staleness: int) -> float:
        """Return the factor of a gradient sum: -rate, over its staleness where asked for (Grad <- -eta * Grad)."""
        return -self.rate(samples, version) / (max(staleness, 1) if self.staleness_rate else 1)
