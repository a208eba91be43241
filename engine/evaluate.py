"""The score of a network on a whole split: mean loss, top-1, top-5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import checkpoint
from .data import Loader, Split
from .feed import Feeder
from .network import Network
from .session import open_session


@dataclass(frozen=True)
class Score:
    """Sums over samples, so that a partial sub-batch and the parts of several ranks weigh right."""

    samples: int = 0
    loss_sum: float = 0.0
    top1_count: int = 0
    top5_count: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(self.samples + other.samples, self.loss_sum + other.loss_sum,
                     self.top1_count + other.top1_count, self.top5_count + other.top5_count)

    @property
    def loss(self) -> float:
        """Mean loss of a sample."""
        return self.loss_sum / self.samples

    @property
    def top1(self) -> float:
        """Share of the samples whose label has the greatest logit."""
        return self.top1_count / self.samples

    @property
    def top5(self) -> float:
        """Share of the samples whose label is among the five greatest logits."""
        return self.top5_count / self.samples

    def plain(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {"loss": self.loss, "top1": self.top1, "top5": self.top5, "test_images": self.samples}


def evaluate(network: Network, split: Split, feeder: Feeder, *, at_most: int | None = None, rank: int = 0,
             size: int = 1, stop: Callable[[], bool] = lambda: False) -> Score | None:
    """Score `network` on its share of `split` in order, or on the first `at_most` samples of it.

    Returns None when `stop()` became true before the end.
    """
    score = Score()
    with Loader(split, network.subbatch, shuffle=False, rank=rank, size=size, epochs=1) as loader:
        for batch in loader:
            if stop():
                return None
            x, labels, _ = feeder.put(batch)
            score += _score(*network.evaluate(x, labels))
            if at_most is not None and score.samples >= at_most:
                break
    return score


def _score(losses: np.ndarray, ranks: np.ndarray) -> Score:
    """losses (n) float32; ranks (n) int32, how many logits beat the label's."""
    total = float(losses.sum(dtype=np.float64))
    return Score(len(losses), total, int((ranks < 1).sum()), int((ranks < 5).sum()))


def evaluate_checkpoint(place: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Score the checkpoint `place`, or the latest of that run folder, with `changes` of its options.

    Labels mean what they meant in training. Raises UsageError, ValueError or OSError with one line for people.
    """
    path = checkpoint.find(place)
    saved = checkpoint.load_finite(path)
    session = open_session(replace(saved.config, **changes, resume=None), saved)
    score = evaluate(session.network, session.dataset.test, session.feeder())
    assert score is not None
    return {**score.plain(), "checkpoint": str(path), "step": saved.step, "net": saved.config.net,
            "data": session.config.data, "device": session.device.describe()}
