"""A worker: one device with its network and its share of the data, giving gradients to whoever updates the weights."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import numpy as np

from ..kernels import update
from ..kernels.device import Stage
from .data import Loader
from .feed import Feeder
from .network import Network


class Worker:
    """batches -> fetch weights -> forward -> backward -> deposit gradient, on one device and in one thread.

    n_params: length of the flat weight and gradient vectors (float32), padding counted in. weight_decay: of the mean
    loss of a sample, so the gradient SUM of n samples gets n * weight_decay * W. times: seconds of the last compute()
    and deposit() by term of the paper's model: load_image, deform_image, compute_update_val.
    """

    def __init__(self, network: Network, loader: Loader, feeder: Feeder, weight_decay: float = 0.0) -> None:
        self.network, self.loader, self.feeder, self.weight_decay = network, loader, feeder, weight_decay
        self.device = network.device
        self.n_params = int(network.weights.flat.size)
        self.times: dict[str, float] = {}
        self._samples = self._step = 0

    @cached_property
    def _stage(self) -> Stage:
        """What weights go up and gradients come down by; page-locked memory on cuda, for those that do so only."""
        return self.device.stage(self.n_params)

    def fetch(self, weights: np.ndarray) -> None:
        """Copy flat weights (n_params,) float32 into the device; they may be changed once this returns."""
        self._stage.up(self.network.weights.flat, weights)

    def compute(self) -> tuple[float, int]:
        """Gradient of the next sub-batch, as a SUM over its samples; returns (sum of the losses, samples)."""
        begin = time.perf_counter()
        with self.device.range("images load"):
            batch = next(self.loader)
        loaded = time.perf_counter()
        x, labels, self._samples = self.feeder.put(batch)
        self.device.synchronize()
        self.times["load_image"], self.times["deform_image"] = loaded - begin, time.perf_counter() - loaded
        self.network.set_step(self._step)
        self._step += 1
        self.network.gradient(x, labels, 1.0)
        return self.network.loss_sum(), self._samples

    def deposit(self, buffer: np.ndarray, add: bool, scale: float) -> None:
        """buffer (n_params,) float32 on the host = scale * gradient sum, or += with `add`. Uses the gradient up."""
        begin = time.perf_counter()
        gradient = self.network.grads.flat
        if self.weight_decay:
            update.axpy(self.device, self._samples * self.weight_decay, self.network.weights.flat, gradient)
        update.scale(self.device, gradient, scale)
        gradient = self._stage.down(gradient)
        self.times["compute_update_val"] = time.perf_counter() - begin
        if add:
            np.add(buffer, gradient, out=buffer)
        else:
            np.copyto(buffer, gradient)

    def divide(self, share: int, shares: int, samples: int) -> None:
        """Go on with share `share` of `shares` of the data, of which the whole job has used `samples`."""
        order, total = self.loader.state(), len(self.loader.split)
        old = self.loader
        self.loader = Loader(old.split, old.subbatch, order["seed"], bool(order["shuffle"]), rank=share, size=shares,
                             threads=old.threads)
        old.close()
        epoch, used = divmod(samples, total)
        position = min(used // shares, self.loader.samples - 1)
        self.loader.restore({**self.loader.state(), "epoch": epoch, "position": position})

    def state(self) -> dict[str, Any]:
        """Place in the data and number of the next step, fit for JSON."""
        return {"step": self._step, **self.loader.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to the place that state() gave."""
        self.loader.restore(state)
        self._step = state.get("step", self._step)

    def close(self) -> None:
        """End the loader's threads."""
        self.loader.close()
