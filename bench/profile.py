"""Where the time of a training step goes: by layer, direction and kernel, against the machine's ceilings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..kernels import source
from ..kernels.conv_shape import ConvShape
from .ceilings import Ceilings
from .dry import Launch
from .net_calls import problem_of
from .selection import case_of
from .timing import Spread
from .trace import Call, Event, Step, TracedDevice

PARTS = ("load", "deform", "im2col", "sgemm", "conv", "bias", "activation", "pool", "col2im", "softmax", "update")


@dataclass(frozen=True)
class Cost:
    """What a call must do at least: bytes that move, operations of the plain algorithm."""

    bytes_moved: int
    flops: int


@dataclass(frozen=True)
class Row:
    """All calls of one kernel in one direction of one layer, per step; ms as a Spread over the steps."""

    layer: str
    direction: str
    part: str
    kernel: str
    calls: int
    ms: Spread
    share: float  # of the step
    bytes_moved: int
    flops: int
    gb_per_s: float
    gflop_per_s: float
    intensity: float  # flops a byte
    ceiling: float  # share of what the machine can do at this intensity


@dataclass(frozen=True)
class Profile:
    """Rows in the order of the step, and the totals in milliseconds.

    kernels_ms: all rows together; host_ms: the rest of the observed step (Python, launches, waiting); step_ms: the
    observed step; untimed_ms: the same step by the wall clock with nobody watching.
    """

    rows: list[Row]
    steps: int
    kernels_ms: float
    host_ms: float
    step_ms: float
    untimed_ms: Spread

    @property
    def difference(self) -> float:
        """(sum of all parts - untimed step) / untimed step."""
        return self.step_ms / self.untimed_ms.median - 1

    def parts_ms(self) -> dict[str, float]:
        """Milliseconds by part, host overhead last."""
        sums = dict.fromkeys(PARTS, 0.0)
        for row in self.rows:
            sums[row.part] = sums.get(row.part, 0.0) + row.ms.median
        return {name: ms for name, ms in sums.items() if ms} | {"host overhead": self.host_ms}

    def plain(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {"steps": self.steps, "kernels_ms": self.kernels_ms, "host_ms": self.host_ms, "step_ms": self.step_ms,
                "untimed_ms": asdict(self.untimed_ms), "difference": self.difference, "parts_ms": self.parts_ms(),
                "rows": [asdict(row) for row in self.rows]}


def observe(device: TracedDevice, step: Callable[[], Any], steps: int,
            warm_up: int = 2) -> tuple[list[Step], list[float]]:
    """Observed steps, and the milliseconds of as many untimed ones, taken in turn so that noise meets both alike."""
    for _ in range(warm_up):
        step()
    device.observe(step)
    observed: list[Step] = []
    untimed: list[float] = []
    for _ in range(steps):
        untimed.append(wall_ms(device, step))
        observed.append(device.observe(step))
    return observed, untimed


def wall_ms(device: TracedDevice, step: Callable[[], Any]) -> float:
    """Milliseconds of one step by the wall clock, from an idle device to an idle device."""
    device.synchronize()
    first = device.device.mark()
    step()
    device.synchronize()
    return device.elapsed_ms(first, device.device.mark())


def profile(steps: Sequence[Step], untimed_ms: Sequence[float], ceilings: Ceilings) -> Profile:
    """Rows and totals of observed steps. Raises RuntimeError when the steps did not make the same calls."""
    groups: dict[tuple[str, ...], list[int]] = {}
    first = steps[0].events
    for index, event in enumerate(first):
        groups.setdefault((event.layer, event.direction, event.call.part, event.call.kernel), []).append(index)
    times = _times(steps)
    step_ms = float(np.median([step.wall_ms for step in steps]))
    rows = [_row(key, [first[i] for i in places], times[:, places].sum(1), step_ms, ceilings)
            for key, places in groups.items()]
    kernels = times.sum(1)
    host_ms = float(np.median(np.array([step.wall_ms for step in steps]) - kernels))
    return Profile(rows, len(steps), float(np.median(kernels)), host_ms, step_ms, Spread.of(untimed_ms))


def _times(steps: Sequence[Step]) -> np.ndarray:
    """(steps, calls) milliseconds."""
    names = [[(e.layer, e.direction, e.call.kernel) for e in step.events] for step in steps]
    if any(found != names[0] for found in names):
        raise RuntimeError("profile: expected every step to make the same calls, got another sequence")
    return np.array([[e.ms for e in step.events] for step in steps]).reshape(len(steps), -1)


def _row(key: tuple[str, ...], events: list[Event], sums: np.ndarray, step_ms: float, ceilings: Ceilings) -> Row:
    layer, direction, part, kernel = key
    costs = [cost(event.call) for event in events]
    moved, flops = sum(c.bytes_moved for c in costs), sum(c.flops for c in costs)
    ms = Spread.of(sums)
    seconds = max(ms.median, 1e-9) / 1e3
    least = ceilings.least_ms(moved, flops)
    return Row(layer, direction, part, kernel, len(events), ms, ms.median / step_ms, moved, flops,
               moved / seconds / 1e9, flops / seconds / 1e9, flops / moved if moved else 0.0,
               least / ms.median if ms.median and math.isfinite(least) else 0.0)


def cost(call: Call) -> Cost:
    """Bytes and operations of a call; those of a range that launched nothing are zero."""
    if call.family == "native":
        return _product_cost(*call.arguments[0]) if call.kernel == "sgemm" else _convolution_cost(*call.arguments[0])
    if call.family == "gemm" and call.kernel == "sgemm":
        a, b, c, trans_a, _, beta = call.arguments
        k = a.shape[0] if trans_a else a.shape[1]
        return Cost(4 * (a.size + b.size + c.size * (2 if beta else 1)), 2 * c.size * k)
    if not call.arguments:
        return Cost(0, 0)
    names = [p.name.lower() for p in _signatures(call.family)[call.kernel].parameters]
    problem = problem_of(Launch(call.family, call.kernel, dict(zip(names, call.arguments, strict=True))))
    case = case_of(problem)
    return Cost(case.bytes_moved, case.flops)


_signatures = functools.cache(source.signatures)


def _product_cost(m: int, n: int, k: int) -> Cost:
    return Cost(4 * (m * k + k * n + m * n), 2 * m * n * k)


def _convolution_cost(shape: ConvShape, pool: int) -> Cost:
    """A convolution of the host's library: x, w and the pooled y or dy once each."""
    x, w, y = math.prod(shape.x), math.prod(shape.w), math.prod(shape.y) // pool**2
    return Cost(4 * (x + w + y), 2 * shape.macs)
