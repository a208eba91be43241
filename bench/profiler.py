"""A training step of a net on made-up images, ready to be observed."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.augment import Augment
from ..engine.data import Dataset, Loader, open_dataset
from ..engine.feed import Feeder
from ..engine.layers import NetSpec
from ..engine.network import Network
from ..engine.optim import open_optimizer
from .trace import TracedDevice

LR = 1e-6  # small, so that the weights of a profile stay where they are


@dataclass
class TrainingStep:
    """load -> deform -> forward -> backward -> update, as `sprint train` does it on one device."""

    device: TracedDevice
    network: Network
    loader: Loader
    feeder: Feeder

    def __post_init__(self) -> None:
        self.optimizer = open_optimizer("momentum", self.network.weights, self.network.grads)

    def __call__(self) -> None:
        """Make one step."""
        with self.device.range("images load"):
            batch = next(self.loader)
        x, labels, n = self.feeder.put(batch)
        self.network.gradient(x, labels, 1.0 / n)
        self.optimizer.update(LR)


def open_step(device: TracedDevice, spec: NetSpec, subbatch: int, *, conv_algo: str = "auto", augment: bool = False,
              dataset: Dataset | None = None) -> TrainingStep:
    """A step of `spec` for `subbatch` images of `dataset` (default: synthetic ones)."""
    dataset = dataset or open_dataset("synthetic", image_shape=spec.in_shape, classes=spec.classes)
    network = Network(spec, device, subbatch, conv_algo=conv_algo)
    feeder = Feeder(device, dataset, subbatch, augment=Augment() if augment else None)
    return TrainingStep(device, network, Loader(dataset.train, subbatch), feeder)
