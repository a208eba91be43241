"""What was seen of one case, as ratios against the better of PyTorch's two layouts, and whether the goals were met."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .cases import OURS, THEIRS, Case

LOSS_LIMITS = {"fp32": 1e-3, "tf32": 2e-2}  # relative, over all compared steps
LEAST_STEP, LEAST_LAYER, MOST_OWN_TIME = 1.0, 0.9, 0.02
Times = dict[str, dict[str, list[float]]]  # contender -> what -> milliseconds, one a round


@dataclass(frozen=True)
class Settings:
    """rounds of each measurement; seconds of one turn in a round; steps whose losses are compared."""

    rounds: int = 7
    seconds: float = 1.0
    loss_steps: int = 20


@dataclass(frozen=True)
class LayerTimes:
    """Forward and backward of one convolution with its ReLU and pool."""

    name: str
    times: Times

    def ratio(self, direction: str) -> float:
        """How many times faster ours is: median over the rounds, against the layout that is faster for this layer."""
        return ratio(self.times, direction, better(self.times))


@dataclass(frozen=True)
class CaseResult:
    """versions, losses (one a step) and memory (peak, growth: bytes) by contender; own_time: own_time.OwnTime."""

    case: Case
    versions: dict[str, str]
    losses: dict[str, list[float]]
    steps: Times
    memory: dict[str, dict[str, int]]
    layers: list[LayerTimes]
    own_time: dict[str, float] | None

    @property
    def peer(self) -> str:
        """The layout of PyTorch that takes less time a step."""
        return better(self.steps)

    @property
    def ratio(self) -> float:
        """Images per second over PyTorch's: the median of the rounds."""
        return ratio(self.steps, "step", self.peer)

    def images_per_s(self, name: str) -> float:
        """Of whole training steps, from the median round."""
        return 1e3 * self.case.subbatch / float(np.median(self.steps[name]["step"]))

    @property
    def loss_difference(self) -> float:
        """The worst relative difference of a loss from that of either layout."""
        ours = np.array(self.losses[OURS])
        return max(float(np.max(abs(ours - self.losses[name]) / abs(np.array(self.losses[name])))) for name in THEIRS)

    @property
    def losses_agree(self) -> bool:
        """Whether the losses are equal but for rounding (NaN never is)."""
        return self.loss_difference <= LOSS_LIMITS[self.case.math]

    @property
    def own_share(self) -> float | None:
        """Our time outside of kernels as a share of the median step; the larger of the two ways to see it."""
        if self.own_time is None:
            return None
        return max(self.own_time["between_ms"] / self.own_time["step_ms"],
                   self.own_time["python_ms"] / float(np.median(self.steps[OURS]["step"])))

    def missed(self) -> list[str]:
        """The goals that were missed, each with its figure."""
        memory = self.memory[OURS]["peak"] / self.memory[self.peer]["peak"]
        goals = [(self.ratio >= LEAST_STEP, f"step {self.ratio:.2f}x of at least {LEAST_STEP:g}x"),
                 (memory <= 1, f"peak memory {memory:.2f} of PyTorch's")]
        for layer in self.layers:
            for direction in ("forward", "backward"):
                found = layer.ratio(direction)
                goals.append((found >= LEAST_LAYER, f"{layer.name} {direction} {found:.2f}x of {LEAST_LAYER:g}x"))
        if self.own_share is not None:
            text = f"time outside kernels {self.own_share:.1%} of below {MOST_OWN_TIME:.0%}"
            goals.append((self.own_share < MOST_OWN_TIME, text))
        return [text for met, text in goals if not met]

    def plain(self) -> dict[str, Any]:
        """Fit for JSON."""
        layers = [{"name": layer.name, "ms": layer.times, "peer": better(layer.times),
                   **{direction: layer.ratio(direction) for direction in ("forward", "backward")}}
                  for layer in self.layers]
        return {**asdict(self.case), "versions": self.versions, "peer": self.peer, "times_peer": self.ratio,
                "images_per_s": {name: self.images_per_s(name) for name in self.steps}, "step_ms": self.steps,
                "memory_bytes": self.memory, "losses": self.losses, "loss_difference": self.loss_difference,
                "layers": layers, "own_time": self.own_time, "own_share": self.own_share, "missed": self.missed()}


def better(times: Times) -> str:
    """The layout of PyTorch whose median over the rounds of all directions together is smaller."""
    return min(THEIRS, key=lambda name: sum(float(np.median(ms)) for ms in times[name].values()))


def ratio(times: Times, what: str, peer: str) -> float:
    """Median over the rounds of the peer's time over ours."""
    return float(np.median(np.array(times[peer][what]) / np.array(times[OURS][what])))
