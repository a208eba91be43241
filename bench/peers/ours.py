"""This project as a contender."""

from __future__ import annotations

import numpy as np

from ... import __version__
from ...engine.fusion import fuse
from ...engine.network import Network
from ...engine.optim import open_optimizer
from ...engine.stages import plan_conv
from ...kernels.device import Device, open_device
from .cases import MOMENTUM, SEED, Case
from .contender import Calls


class Sprint:
    """A Network and its optimiser on one batch that lies on the device."""

    def __init__(self, case: Case, device: Device | None = None, conv_algo: str = "auto") -> None:
        self.case, self.conv_algo = case, conv_algo
        self.device = device or open_device(case.device, threads=case.threads, math_mode=case.math)

    def build(self) -> None:
        """Take all memory, upload weights and batch."""
        device, (images, labels) = self.device, self.case.batch()
        self.network = Network(self.case.spec, device, self.case.subbatch, conv_algo=self.conv_algo, seed=SEED)
        self.x = device.upload(np.ascontiguousarray(images.transpose(1, 0, 2, 3)))
        self.labels = device.upload(labels)
        self.optimizer = open_optimizer("momentum", self.network.weights, self.network.grads, momentum=MOMENTUM)

    def step(self, lr: float) -> None:
        """One training step."""
        self.network.gradient(self.x, self.labels, 1.0 / self.case.subbatch)
        self.optimizer.update(lr)

    def loss(self) -> float:
        """Mean loss."""
        return self.network.loss_sum() / self.case.subbatch

    def synchronize(self) -> None:
        """Wait for the device."""
        self.device.synchronize()

    def device_bytes(self) -> int:
        """Bytes in use on the device."""
        memory = self.device.memory()
        return memory.total - memory.available

    def layer(self, name: str) -> Calls:
        """The op of one convolution stage."""
        stages = {stage.name: stage for stage in fuse(self.case.spec)}
        stage, first = stages[name], next(iter(stages)) == name
        conv, device = plan_conv(stage, self.device, self.case.subbatch, self.conv_algo, None), self.device
        rng = np.random.default_rng(SEED)
        x, w, b, dy = (device.upload(rng.standard_normal(size, np.float32))
                       for size in (conv.shape.x, conv.shape.w, (conv.shape.K,), conv.y))
        y, dw, db = device.empty(conv.y), device.empty(conv.shape.w), device.empty(conv.shape.K)
        dx = None if first else device.empty(conv.shape.x)
        arg = device.empty(conv.y, np.uint8) if conv.pool > 1 else None
        workspace = device.empty(-(-conv.workspace_bytes() // 4))
        return (lambda: conv.forward(x, w, b, y, stage.relu, workspace, arg),
                lambda: conv.backward(x, w, y, dy, dw, db, dx, stage.relu, workspace, arg))

    def version(self) -> str:
        """Of this project."""
        return __version__
