"""What the engine itself costs a step, besides its kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...kernels.device import Array, Work
from ...kernels.host import HostDevice
from ...kernels.source import Signature
from ..profile import observe, wall_ms
from ..trace import TracedDevice
from .cases import FROZEN_LR, Case
from .ours import Sprint

STEPS = 10


@dataclass(frozen=True)
class OwnTime:
    """Milliseconds a step: the profile's host time (between the calls, caches cold), and all of Python (calls too)."""

    between_ms: float
    python_ms: float
    step_ms: float


class Idle(HostDevice):
    """A host device that checks and converts every call and then computes nothing."""

    def _run(self, family: str, signature: Signature, work: Work, values: list[Any], block: int | None) -> None:
        pass

    def sgemm(self, a: Array, b: Array, c: Array, *, trans_a: bool = False, trans_b: bool = False,
              alpha: float = 1.0, beta: float = 0.0) -> None:
        """Multiply nothing."""

    def native(self, name: str, subject: Any, function: Callable[..., int], *args: Any) -> int:
        """Call nothing."""
        return 0


def own_time(case: Case) -> OwnTime:
    """Observe steps of `case` on its own device, then make the same calls on one that computes nothing."""
    real = _opened(Sprint(case))
    observed, _ = observe(real.device, lambda: real.step(FROZEN_LR), STEPS)
    between = [step.wall_ms - sum(event.ms for event in step.events) for step in observed]
    # a fixed algorithm: on an idle device `auto` would remember a choice that means nothing
    idle = _opened(Sprint(case, Idle(threads=case.threads), "implicit"))
    python = [wall_ms(idle.device, lambda: idle.step(FROZEN_LR)) for _ in range(STEPS)]
    return OwnTime(float(np.median(between)), float(np.median(python)), float(np.median([s.wall_ms for s in observed])))


def _opened(contender: Sprint) -> Any:
    contender.device = TracedDevice(contender.device)
    contender.build()
    return contender
