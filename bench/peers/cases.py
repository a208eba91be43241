"""What is compared: the training problems, equal for every contender, and who contends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...engine.errors import UsageError
from ...engine.layers import NetSpec
from ...engine.nets import build

SEED = 20160809
MOMENTUM = 0.9
LR_PER_SAMPLE = 5e-6  # the loss falls far within 20 steps, but not into chaos or to nothing, where rounding would show
FROZEN_LR = 1e-9  # of timed steps: weights stay, and momentum does not decay to denormal numbers
DEFAULT = (("cnn-a", 92, 8), ("cnn-a", 196, 8), ("cnn-a", 396, 1))
OURS, THEIRS = "sprint", ("torch", "torch channels_last")
CONTENDERS = (OURS, *THEIRS)


@dataclass(frozen=True)
class Case:
    """One training problem on one device; math: fp32 or tf32 (cuda only); threads: of the host."""

    net: str
    image_size: int
    subbatch: int
    device: str
    threads: int
    math: str = "fp32"

    @property
    def spec(self) -> NetSpec:
        """The net."""
        return build(self.net, self.image_size)

    @property
    def title(self) -> str:
        """For people."""
        math = "" if self.math == "fp32" else f", {self.math}"
        return f"{self.net} {self.image_size} px, sub-batch {self.subbatch}{math}"

    @property
    def lr(self) -> float:
        """Learning rate of the steps whose losses are compared."""
        return LR_PER_SAMPLE * self.subbatch

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Images (N,C,H,W) float32 and labels (N,) int32, the same in every process."""
        rng, spec = np.random.default_rng(SEED), self.spec
        images = rng.standard_normal((self.subbatch, *spec.in_shape), np.float32)
        return images, rng.integers(0, spec.classes, self.subbatch).astype(np.int32)


def parse(text: str) -> tuple[str, int, int]:
    """(net, image size, sub-batch) of "cnn-a:92:8". Raises UsageError for anything else."""
    try:
        net, size, subbatch = text.split(":")
        problem = net, int(size), int(subbatch)
    except ValueError:
        raise UsageError(f"case: expected NET:PIXELS:SUBBATCH like cnn-a:92:8, got '{text}'") from None
    build(net, problem[1])
    if problem[2] < 1:
        raise UsageError(f"case: expected a sub-batch of at least 1, got {problem[2]}")
    return problem
