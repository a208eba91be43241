"""`sprint train --profile N`: the profile of N steps of a real run, loading and all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..kernels.device import Device
from . import profile_plots, profile_tables
from .ceilings import Ceilings, measure_ceilings
from .environment import machine
from .files import naming, write_text
from .profile import profile
from .trace import Step, TracedDevice

T = TypeVar("T")
_MEASURED: dict[tuple[str, int], Ceilings] = {}  # by kind and threads: the devices of one process are alike
MEASURING = "profile  measuring what this machine can do at best first"  # which takes some seconds
WARM_UP = 3  # first steps compile, time algorithms and fill caches


class RunProfile:
    """Observes every other step after the first three until it has `steps` of them; those between are only timed.

    say: gets one line before something long.
    """

    def __init__(self, steps: int, say: Callable[[str], None]) -> None:
        self.steps, self._say, self._seen = steps, say, 0
        self._observed: list[Step] = []
        self._untimed: list[float] = []
        self._device: TracedDevice | None = None
        self._ceilings: Ceilings | None = None

    def wrap(self, device: Device) -> Device:
        """A device that notes its calls; its ceilings are measured now, while nothing else runs, once for all alike."""
        key = device.kind, device.threads
        if key not in _MEASURED:
            self._say(MEASURING)
            _MEASURED[key] = measure_ceilings(device)
        self._ceilings = _MEASURED[key]
        self._device = TracedDevice(device)
        return self._device

    def step(self, work: Callable[[], T]) -> T:
        """Run one step, observed when it is its turn."""
        assert self._device is not None
        self._seen += 1
        if self._seen <= WARM_UP or len(self._observed) >= self.steps:
            return work()
        results: list[T] = []
        if self._seen % 2:
            self._observed.append(self._device.observe(lambda: results.append(work())))
        else:
            first = self._device.mark()
            results.append(work())
            self._device.synchronize()
            self._untimed.append(self._device.elapsed_ms(first, self._device.mark()))
        return results[0]

    def write(self, folder: Path, title: str) -> str | None:
        """Write profile.json, .csv, .png and profile.trace.json; the parts of the step in words."""
        steps = _alike(self._observed)
        if not steps or not self._untimed or self._ceilings is None or self._device is None:
            return None
        result = profile(steps, self._untimed, self._ceilings)
        text = profile_tables.as_json(result, {"machine": machine(self._device), "title": title}, self._ceilings)
        write_text(folder / "profile.json", text)
        write_text(folder / "profile.csv", profile_tables.as_csv(result))
        with naming(folder / "profile.trace.json"):
            profile_tables.write_trace(folder / "profile.trace.json", steps)
        profile_plots.draw(folder / "profile.png", result, self._ceilings, title)
        return profile_tables.totals(result)


def _alike(steps: list[Step]) -> list[Step]:
    """The steps that make the calls of the first one: the last sub-batch of an epoch may be smaller."""
    def calls(step: Step) -> list[tuple[object, ...]]:
        return [(e.layer, e.call.kernel, *(getattr(a, "shape", None) for a in e.call.arguments)) for e in step.events]

    return [step for step in steps if calls(step) == calls(steps[0])]
