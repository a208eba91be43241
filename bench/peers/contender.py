"""What a process must be able to do to contend, and the kinds of contenders by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .cases import OURS, Case

Calls = tuple[Callable[[], Any], Callable[[], Any]]


class Contender(Protocol):
    """One engine that trains one case; open after construction, ready to train after build()."""

    case: Case

    def build(self) -> None:
        """Make net, weights, batch and optimiser."""

    def step(self, lr: float) -> None:
        """Forward, backward and momentum update; may only queue the work."""

    def loss(self) -> float:
        """Mean loss of the last step's batch, before its update."""

    def synchronize(self) -> None:
        """Wait for all queued work."""

    def device_bytes(self) -> int:
        """Bytes in use on a GPU, by all processes together."""

    def layer(self, name: str) -> Calls:
        """(forward, backward) of one convolution with its ReLU and pool, on arrays of its own.

        backward follows a forward. The first layer of a net computes no gradient to the images.
        """

    def version(self) -> str:
        """Of the engine."""


def open_contender(name: str, case: Case) -> Contender:
    """The contender `name` of CONTENDERS."""
    if name == OURS:
        from .ours import Sprint

        return Sprint(case)
    from .pytorch import Torch

    return Torch(case, channels_last=name.endswith("channels_last"))
