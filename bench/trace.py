"""Watching a step: a device that notes every launch with its marks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..kernels.device import Array, Device, Work

PARTS = {"im2col": "im2col", "col2im": "col2im", "sgemm": "sgemm"}
FAMILIES = {"softmax": "softmax", "bias": "bias", "reduce": "bias", "activation": "activation",
            "dropout": "activation", "pool": "pool", "update": "update", "conv": "conv", "gemm": "sgemm",
            "image": "deform", "native": "conv"}


@dataclass(frozen=True)
class Call:
    """What was called: family (.cu file, 'native' for the host's library), kernel, and its arguments or subject."""

    family: str
    kernel: str
    arguments: tuple[Any, ...]

    @property
    def part(self) -> str:
        """The part of a step that it belongs to: im2col, sgemm, conv, bias, activation, pool, ..."""
        return PARTS.get(self.kernel) or FAMILIES.get(self.family, self.kernel)


@dataclass(frozen=True)
class Event:
    """One call inside a named range. begin_ms since the start of the step; launch_ms of the calling thread."""

    layer: str
    direction: str
    call: Call
    begin_ms: float
    ms: float
    launch_ms: float


@dataclass
class Step:
    """The events of one observed step, and its milliseconds by the wall clock."""

    wall_ms: float
    events: list[Event]


@dataclass
class _Open:
    """Marks of a call that are read when the step is over: reading a GPU's mark would wait for it."""

    label: str
    call: Call
    first: Any
    last: Any = None
    launch_ms: float = 0.0


@dataclass
class TracedDevice:
    """A device that works as `device` does and, while `observing`, notes what it is asked for.

    Ranges that launch nothing (waiting for images) count by their own duration.
    """

    device: Device
    observing: bool = False
    _open: list[_Open] = field(default_factory=list)
    _label: str = "step other"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def launch(self, family: str, kernel: str, work: Work, *args: Any, block: int | None = None) -> None:
        """Launch, noted."""
        self._note(Call(family, kernel, args), lambda: self.device.launch(family, kernel, work, *args, block=block))

    def sgemm(self, a: Array, b: Array, c: Array, *, trans_a: bool = False, trans_b: bool = False,
              alpha: float = 1.0, beta: float = 0.0) -> None:
        """Multiply, noted."""
        def run() -> None:
            self.device.sgemm(a, b, c, trans_a=trans_a, trans_b=trans_b, alpha=alpha, beta=beta)

        self._note(Call("gemm", "sgemm", (a, b, c, trans_a, trans_b, beta)), run)

    def native(self, name: str, subject: Any, function: Callable[..., int], *args: Any) -> int:
        """Call a library function, noted."""
        return self._note(Call("native", name, (subject,)), lambda: self.device.native(name, subject, function, *args))

    @contextmanager
    def range(self, label: str) -> Iterator[None]:
        """A named stretch: calls inside belong to it."""
        outer, self._label, before = self._label, label, len(self._open)
        first = self.device.mark() if self.observing else None
        try:
            with self.device.range(label):
                yield
        finally:
            if self.observing and len(self._open) == before:
                self._open.append(_Open(label, Call("range", label.rpartition(" ")[2], ()), first, self.device.mark()))
            self._label = outer

    def _note(self, call: Call, run: Callable[[], Any]) -> Any:
        if not self.observing:
            return run()
        entry = _Open(self._label, call, self.device.mark())
        self._open.append(entry)
        begin = _now_ms()
        result = run()
        entry.launch_ms = _now_ms() - begin
        entry.last = self.device.mark()
        return result

    def observe(self, work: Callable[[], Any]) -> Step:
        """Run `work` as one observed step."""
        self._open.clear()
        self.device.synchronize()
        self.observing, start, begin = True, self.device.mark(), _now_ms()
        try:
            work()
            self.device.synchronize()
        finally:
            self.observing = False
        return Step(_now_ms() - begin, [self._event(entry, start) for entry in self._open])

    def _event(self, entry: _Open, start: Any) -> Event:
        layer, _, direction = entry.label.partition(" ")
        elapsed = self.device.elapsed_ms
        return Event(layer, direction, entry.call, elapsed(start, entry.first), elapsed(entry.first, entry.last),
                     entry.launch_ms)


def _now_ms() -> float:
    return 1e3 * time.perf_counter()
