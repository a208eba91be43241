"""Optimisers: their state in flat buffers like the weights, and one kernel an update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..kernels import update
from ..kernels.device import Array, Device
from .errors import UsageError
from .params import Params

ADAGRAD_EPSILON = 1e-8


@dataclass
class Optimizer:
    """weights <- weights - f(gradient, state, lr), in place on the flat buffers.

    step(lr) is one kernel launch; buffers are the flat float32 states by name ('momentum', 'squares').
    """

    device: Device
    step: Callable[[float], None]
    buffers: dict[str, Params] = field(default_factory=dict)

    def update(self, lr: float) -> None:
        """Apply the current gradient with learning rate `lr`."""
        with self.device.range("weights update"):
            self.step(lr)

    def state(self) -> dict[str, Array]:
        """Flat state arrays by name."""
        return {name: buffer.flat for name, buffer in self.buffers.items()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Set the state arrays. Raises ValueError when names or lengths differ."""
        if set(state) != set(self.buffers):
            raise ValueError(f"optimizer: expected state {sorted(self.buffers)}, got {sorted(state)}")
        for name, buffer in self.buffers.items():
            buffer.device.copy(buffer.flat, np.ascontiguousarray(state[name], np.float32))


def open_optimizer(name: str, weights: Params, grads: Params, *, momentum: float = 0.9,
                   weight_decay: float = 0.0) -> Optimizer:
    """The optimiser `name`: 'sgd', 'momentum' or 'adagrad'. Weight decay adds weight_decay * w to every gradient.

    Raises UsageError for an unknown name. Source: Polyak 1964 (momentum); Duchi et al. 2011 (Adagrad).
    """
    device, w, g = weights.device, weights.flat, grads.flat
    if name == "sgd":
        return Optimizer(device, lambda lr: update.sgd(device, w, g, lr, weight_decay))
    if name == "momentum":
        velocity = Params(device, weights.shapes)
        return Optimizer(device, lambda lr: update.momentum(device, w, g, velocity.flat, lr, momentum, weight_decay),
                         {"momentum": velocity})
    if name == "adagrad":
        squares = Params(device, weights.shapes)
        h = squares.flat
        return Optimizer(device, lambda lr: update.adagrad(device, w, g, h, lr, ADAGRAD_EPSILON, weight_decay),
                         {"squares": squares})
    raise UsageError(f"optimizer: expected sgd, momentum or adagrad, got '{name}'")


STATE_BUFFERS = {"sgd": 0, "momentum": 1, "adagrad": 1}
