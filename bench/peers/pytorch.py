"""PyTorch as a contender: the only file that imports it, and only inside functions, for it may be absent."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from ...engine.fusion import Stage, fuse
from ...engine.layers import Conv2D
from ...engine.network import initial_weights
from .cases import MOMENTUM, SEED, Case
from .contender import Calls


def missing() -> str | None:
    """Why PyTorch cannot contend, with the cure; None when it can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed; pip install 'sprint-cnn[peers]', or make bench-peers"
    return None


class Torch:
    """The net as a torch.nn.Sequential with the same weights, trained eagerly; layout: torch's own or channels_last.

    What PyTorch does best without compiling is on: ReLU in place, fused SGD, gradients set to None, cuDNN's search.
    """

    def __init__(self, case: Case, channels_last: bool) -> None:
        import torch

        self.case, self.torch = case, torch
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.device = torch.device("cpu" if case.device.startswith("host") else case.device)
        torch.set_num_threads(case.threads)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = case.math == "tf32"

    def build(self) -> None:
        """Make the modules and copy weights and batch."""
        torch, (images, labels) = self.torch, self.case.batch()
        weights = initial_weights(self.case.spec, SEED)
        self.parts = {stage.name: torch.nn.Sequential(*self._modules(stage, weights))
                      for stage in fuse(self.case.spec)[:-1]}
        self.model = torch.nn.Sequential(*self.parts.values()).to(self.device, memory_format=self.layout)
        self.x = self._image(images)
        self.labels = torch.from_numpy(labels).to(self.device, torch.int64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.case.lr, momentum=MOMENTUM, fused=True)

    def step(self, lr: float) -> None:
        """One training step."""
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        self._loss = self.torch.nn.functional.cross_entropy(self.model(self.x), self.labels)
        self._loss.backward()
        self.optimizer.step()

    def loss(self) -> float:
        """Mean loss."""
        return float(self._loss.item())

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def device_bytes(self) -> int:
        """Bytes in use on the device."""
        free, total = self.torch.cuda.mem_get_info(self.device)
        return total - free

    def layer(self, name: str) -> Calls:
        """The modules of one convolution stage."""
        torch, part, rng = self.torch, self.parts[name], np.random.default_rng(SEED)
        stages = {stage.name: stage for stage in fuse(self.case.spec)}
        stage, first = stages[name], next(iter(stages)) == name
        x, dy = (self._image(rng.standard_normal((self.case.subbatch, *shape), np.float32))
                 for shape in (stage.in_shape, stage.out_shape))
        x.requires_grad_(not first)
        wanted = [*part.parameters(), *([] if first else [x])]
        outputs: list[Any] = []
        return (lambda: outputs.append(part(x))), (lambda: torch.autograd.grad(outputs.pop(), wanted, dy) and None)

    def version(self) -> str:
        """Of PyTorch, with what computes."""
        torch = self.torch
        return f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}" if self.device.type == "cuda" else \
            str(torch.__version__)

    def _image(self, array: np.ndarray) -> Any:
        return self.torch.from_numpy(array).to(self.device, memory_format=self.layout)

    def _modules(self, stage: Stage, weights: dict[str, np.ndarray]) -> list[Any]:
        """Layers of one stage, in order."""
        nn, layer = self.torch.nn, stage.layer
        if stage.kind == "flatten":
            return []  # each Linear flattens, for (C, 1, 1) is no vector to PyTorch
        if stage.kind == "conv" and isinstance(layer, Conv2D):
            modules = [nn.Conv2d(stage.in_shape[0], layer.filters, layer.window, layer.stride, layer.pad)]
        elif stage.kind == "dense":
            modules = [nn.Flatten(), nn.Linear(stage.in_shape[0], stage.out_shape[0])]
        else:
            raise ValueError(f"peers: expected layers of conv, dense, ReLU and pool, got {stage.kind} ({stage.name})")
        with self.torch.no_grad():
            for parameter, key in ((modules[-1].weight, "w"), (modules[-1].bias, "b")):
                parameter.copy_(self.torch.from_numpy(weights[f"{stage.name}.{key}"]))
        modules += [nn.ReLU(inplace=True)] if stage.relu else []
        return modules + ([nn.MaxPool2d(stage.pool)] if stage.pool > 1 else [])
