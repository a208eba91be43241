"""A network on a device: its buffers, the forward pass, and the gradient of a sub-batch."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ..kernels.conv_shape import expect_shape
from ..kernels.device import Array, Device
from .fusion import fuse, scratch_sizes
from .layers import NetSpec
from .params import Params, he_initial
from .stages import Context, ConvStage, DenseStage, LossStage, open_stage

# Max-pooling lets activations grow past He's estimate; with full weights in the last layer training would start from
# confident nonsense, at a loss far above log(classes).
LOGIT_GAIN = np.float32(0.03)


@dataclass
class _Views:
    """Arrays (C,n,H,W) of one sub-batch size: the output of every stage, and the gradient of every output."""

    outputs: list[Array]
    gradients: list[Array]


class Network:
    """Weights, gradients and activations of one net on one device, for up to `subbatch` samples at a time.

    weights, grads: Params (flat float32 with named views); weights are He-initialised from `seed`. All memory is taken
    here, none in a step. One network serves one thread.
    """

    def __init__(self, spec: NetSpec, device: Device, subbatch: int, *, conv_algo: str = "auto",
                 workspace_bytes: int | None = None, seed: int = 0) -> None:
        if subbatch < 1:
            raise ValueError(f"subbatch: expected at least 1, got {subbatch}")
        self.spec, self.device, self.subbatch = spec, device, subbatch
        self.weights = Params(device, spec.parameter_shapes)
        self.grads = Params(device, spec.parameter_shapes)
        self.weights.upload(initial_weights(spec, seed))
        self._context = Context(device, subbatch, self.weights, self.grads, conv_algo, workspace_bytes, seed)
        plan = fuse(spec)
        self._plan = plan[:-1]
        self.stages = [open_stage(stage, self._context) for stage in self._plan]
        self.loss = LossStage(plan[-1], self._context)
        self._scratch = [device.empty(size * subbatch) for size in scratch_sizes(plan)]
        self._kept = {i: device.empty(s.out_size * subbatch) for i, s in enumerate(self._plan) if s.keeps_output}
        self._workspace = device.empty(-(-self._workspace_bytes() // 4))
        self._views = functools.cache(self._make_views)
        self._labels = [(f"{s.name} forward", f"{s.name} backward") for s in plan]
        self._last_n = 0

    def _workspace_bytes(self) -> int:
        users = [stage for stage in self.stages if isinstance(stage, (ConvStage, DenseStage))]
        return max((stage.workspace_bytes(self.subbatch) for stage in users), default=0)

    def _make_views(self, n: int) -> _Views:
        def view(buffer: Array, shape: tuple[int, int, int]) -> Array:
            C, H, W = shape
            return buffer[: C * n * H * W].reshape(C, n, H, W)

        scratch = [view(self._scratch[i % 2], s.out_shape) for i, s in enumerate(self._plan)]
        kept = [view(self._kept[i], s.out_shape) if i in self._kept else scratch[i] for i, s in enumerate(self._plan)]
        return _Views(kept, scratch)

    def set_step(self, step: int) -> None:
        """Number of the coming step; dropout masks follow from it and the seed."""
        self._context.step = step

    def forward(self, x: Array, train: bool = False) -> Array:
        """Logits (K,n) of images x (C,n,H,W) float32 on the device; a view that the next call overwrites."""
        n = x.shape[1]
        expect_shape("network", x=(x.shape, (self.spec.in_shape[0], n, *self.spec.in_shape[1:])))
        if n > self.subbatch:
            raise ValueError(f"network: expected at most {self.subbatch} samples, got {n}")
        for stage, y, label in zip(self.stages, self._views(n).outputs, self._labels, strict=False):
            with self.device.range(label[0]):
                stage.forward(x, y, self._workspace, train)
            x = y
        return x.reshape(x.shape[0], n)

    def gradient(self, x: Array, labels: Array, scale: float) -> None:
        """Set grads to scale * sum over the n samples of dE/dW (eq. 1 of Oyama et al. 2016 is scale = 1).

        x (C,n,H,W) float32 and labels (n,) int32, both on the device. n = 0 gives zero gradients.
        """
        self._last_n = labels.size
        if labels.size == 0:
            self.device.copy(self.grads.flat, self.device.zeros(self.grads.flat.shape))
            return
        logits = self.forward(x, train=True)
        views = self._views(labels.size)
        with self.device.range(self._labels[-1][0]):
            self.loss.gradient(logits, labels, views.gradients[-1], scale)
        first = 1 if self._plan[0].kind == "flatten" else 0  # nobody needs the gradient to the images
        for i in reversed(range(first, len(self.stages))):
            source = views.outputs[i - 1] if i else x
            dx = views.gradients[i - 1] if i > first else None
            with self.device.range(self._labels[i][1]):
                self.stages[i].backward(source, views.outputs[i], views.gradients[i], dx, self._workspace)

    def loss_sum(self) -> float:
        """Sum of the losses of the last gradient(); waits for the device."""
        return float(self.device.download(self.loss.losses[: self._last_n]).sum(dtype=np.float64))

    def evaluate(self, x: Array, labels: Array) -> tuple[np.ndarray, np.ndarray]:
        """Loss (n,) float32 and rank (n,) int32 of each label among the logits (0 = top-1), on the host."""
        return self.loss.evaluate(self.forward(x), labels)


def initial_weights(spec: NetSpec, seed: int) -> dict[str, np.ndarray]:
    """He's initial weights, those of the last layer scaled down so that the first loss is about log(classes)."""
    arrays = he_initial(spec.parameter_shapes, seed)
    last = [name for name, array in arrays.items() if array.ndim > 1][-1]
    arrays[last] *= LOGIT_GAIN
    return arrays
