"""Learning-rate schedules: pure functions of the progress, written as text and joined by +."""

from __future__ import annotations

import math
from collections.abc import Callable

from .errors import UsageError

Schedule = Callable[[int, float, float], float]
FORMS = "constant, step:FACTOR@EPOCH,EPOCH..., cosine, warmup:STEPS; joined by + (warmup:100+cosine)"


def parse(text: str) -> Schedule:
    """The schedule that `text` describes: (steps done, epochs done, epochs in all) -> factor of the rate.

    Parts joined by + are multiplied. Epochs may be fractional, so that a run that ends inside an epoch, or
    that counts its epochs by samples over many ranks, has a schedule too. Raises UsageError naming the part.
    """
    parts = [_part(part.strip()) for part in text.split("+")]
    return lambda step, epoch, epochs: math.prod(part(step, epoch, epochs) for part in parts)


def _part(text: str) -> Schedule:
    name, colon, arguments = text.partition(":")
    if text == "constant":
        return _constant
    if text == "cosine":
        return _cosine
    try:
        if name == "step" and colon:
            return _step(arguments)
        if name == "warmup" and colon:
            return _warmup(arguments)
    except ValueError:
        pass
    raise UsageError(f"schedule: expected {FORMS}; got '{text}'")


def _constant(step: int, epoch: float, epochs: float) -> float:
    return 1.0


def _cosine(step: int, epoch: float, epochs: float) -> float:
    """Half a cosine from 1 to 0 over the run. Source: Loshchilov and Hutter 2017, eq. (5), no restarts."""
    return 0.5 * (1.0 + math.cos(math.pi * min(epoch / epochs, 1.0)))


def _step(arguments: str) -> Schedule:
    """FACTOR@E1,E2,...: the rate is multiplied by FACTOR when epochs E1, E2, ... are done."""
    factor_text, _, milestones_text = arguments.partition("@")
    factor = float(factor_text)
    milestones = [float(text) for text in milestones_text.split(",")]
    if not (0 < factor < math.inf and all(0 < milestone < math.inf for milestone in milestones)):
        raise ValueError
    return lambda step, epoch, epochs: factor ** sum(epoch >= milestone for milestone in milestones)


def _warmup(arguments: str) -> Schedule:
    """STEPS: a line up to the full rate at step number STEPS. Source: Goyal et al. 2017, section 2.2."""
    steps = int(arguments)
    if steps < 1:
        raise ValueError
    return lambda step, epoch, epochs: min(1.0, (step + 1) / steps)
