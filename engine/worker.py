"""A worker: one device with its network and its share of the data, giving gradients to whoever updates the weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from .data import Loader
from .feed import Feeder
from .network import Network


class Worker:
    """batches -> fetch weights -> forward -> backward -> deposit gradient, on one device and in one thread.

    n_params: length of the flat weight and gradient vectors (float32), padding counted in.
    """

    def __init__(self, network: Network, loader: Loader, feeder: Feeder) -> None:
        self.network, self.loader, self.feeder = network, loader, feeder
        self.device = network.device
        self.n_params = int(network.weights.flat.size)

    def fetch(self, weights: np.ndarray) -> None:
        """Copy flat weights (n_params,) float32 from the host into the device."""
        self.device.copy(self.network.weights.flat, weights)

    def compute(self) -> tuple[float, int]:
        """Gradient of the next sub-batch, as a SUM over its samples; returns (sum of the losses, samples)."""
        x, labels, samples = self.feeder.put(next(self.loader))
        self.network.gradient(x, labels, 1.0)
        return self.network.loss_sum(), samples

    def deposit(self, buffer: np.ndarray, add: bool, scale: float) -> None:
        """buffer (n_params,) float32 on the host = scale * gradient, or += with `add`. Uses the gradient up."""
        gradient = self.network.grads.flat
        if self.device.kind != "host":
            gradient = self.device.download(gradient)
        if add:
            np.multiply(gradient, np.float32(scale), out=gradient)
            np.add(buffer, gradient, out=buffer)
        else:
            np.multiply(gradient, np.float32(scale), out=buffer)

    def state(self) -> dict[str, Any]:
        """Place in the data, fit for JSON."""
        return self.loader.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go to the place that state() gave."""
        self.loader.restore(state)

    def close(self) -> None:
        """End the loader's threads."""
        self.loader.close()
