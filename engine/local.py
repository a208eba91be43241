"""The simplest algorithm: one device, one update a gradient."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .checkpoint import Checkpoint
from .optim import open_optimizer
from .session import Session


class Updates(Protocol):
    """What turns gradients into new weights; the trainer knows no more about an algorithm than this.

    ranks: processes that take part; gradient: its form in words; epoch: passes over the training images so
    far; epoch_ended: whether the last step ended one; steps_per_epoch: as far as one can know.
    """

    ranks: int
    gradient: str

    @property
    def epoch(self) -> float: ...
    @property
    def epoch_ended(self) -> bool: ...
    @property
    def steps_per_epoch(self) -> int: ...
    def step(self, number: int, lr: float) -> tuple[float, int]: ...
    def optimizer_state(self) -> dict[str, np.ndarray]: ...
    def worker_state(self) -> dict[str, Any]: ...
    def restore(self, saved: Checkpoint) -> None: ...
    def close(self) -> None: ...


class Local:
    """Forward, backward and update on one device, one after the other."""

    ranks = 1
    gradient = "mean over the sub-batch"

    def __init__(self, session: Session) -> None:
        config = session.config
        self.network, self.worker = session.network, session.worker()
        self.optimizer = open_optimizer(config.optimizer, self.network.weights, self.network.grads,
                                        momentum=config.momentum, weight_decay=config.weight_decay)

    @property
    def steps_per_epoch(self) -> int:
        """Sub-batches in one pass over the training images."""
        return self.worker.loader.batches_per_epoch

    @property
    def epoch(self) -> float:
        """Passes over the training images so far, with the part of the present one."""
        place = self.worker.state()
        return place["epoch"] + place["position"] / place["samples"]

    @property
    def epoch_ended(self) -> bool:
        """Whether the next sub-batch is the first of an epoch."""
        return self.worker.state()["position"] == 0

    def step(self, number: int, lr: float) -> tuple[float, int]:
        """Make update `number`, counted from 0; returns (sum of the losses, samples)."""
        with self.network.device.range("images load"):
            batch = next(self.worker.loader)
        x, labels, samples = self.worker.feeder.put(batch)
        self.network.set_step(number)
        self.network.gradient(x, labels, 1.0 / samples)
        self.optimizer.update(lr)
        return self.network.loss_sum(), samples

    def optimizer_state(self) -> dict[str, np.ndarray]:
        """Copies of the optimiser's flat arrays by name."""
        return {name: self.network.device.download(array) for name, array in self.optimizer.state().items()}

    def worker_state(self) -> dict[str, Any]:
        """Place in the data."""
        return self.worker.state()

    def restore(self, saved: Checkpoint) -> None:
        """Take up optimiser and place in the data where `saved` left them."""
        self.optimizer.restore(saved.optimizer)
        self.worker.restore(saved.worker)

    def close(self) -> None:
        """End the loader's threads."""
        self.worker.close()
