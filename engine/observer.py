"""Whoever watches a run from outside: the engine lets it wrap the device and see every step, and knows no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from ..kernels.device import Device

T = TypeVar("T")


class Observer(Protocol):
    """Sees the steps of one worker."""

    def wrap(self, device: Device) -> Device:
        """The device that the run shall use instead of `device`."""

    def step(self, work: Callable[[], T]) -> T:
        """Run one step and return what it returns."""

    def write(self, folder: Path, title: str) -> str | None:
        """Write what was seen into the run folder; a line for people, None when nothing was seen."""


class Unobserved:
    """Nobody watches."""

    def wrap(self, device: Device) -> Device:
        """The device itself."""
        return device

    def step(self, work: Callable[[], T]) -> T:
        """Run the step."""
        return work()

    def write(self, folder: Path, title: str) -> str | None:
        """Nothing was seen."""
        return None
