"""Stages at run time: forward and backward of each kind on a device, on buffers that the network owns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..kernels import activation, dropout, pool, softmax
from ..kernels.conv import Conv
from ..kernels.conv_shape import ConvShape
from ..kernels.dense import Dense
from ..kernels.device import Array, Device
from ..kernels.im2col import col2im, im2col
from .fusion import Stage
from .layers import Conv2D, Dropout, MaxPool2D
from .params import Params


@dataclass
class Context:
    """What all stages of one network share; nothing of it is shared between two workers."""

    device: Device
    subbatch: int
    weights: Params
    grads: Params
    conv_algo: str
    workspace_limit: int | None  # bytes
    seed: int
    step: int = 0


class ConvStage:
    """Convolution + bias (+ ReLU) (+ max-pool)."""

    def __init__(self, stage: Stage, context: Context) -> None:
        self.stage, self.context = stage, context
        self.w, self.b = context.weights.views[f"{stage.name}.w"], context.weights.views[f"{stage.name}.b"]
        self.dw, self.db = context.grads.views[f"{stage.name}.w"], context.grads.views[f"{stage.name}.b"]
        self.argument = context.device.empty(stage.out_size * context.subbatch if stage.pool > 1 else 0, np.uint8)
        self.convs: dict[int, Conv] = {}
        self.arguments: dict[int, Array | None] = {}  # by the number of images

    def conv(self, n: int) -> Conv:
        """The planned convolution of n images."""
        if n not in self.convs:
            context = self.context
            planned = plan_conv(self.stage, context.device, n, context.conv_algo, context.workspace_limit)
            if n < context.subbatch:
                planned.follow(self.conv(context.subbatch))
            self.convs[n] = planned
        return self.convs[n]

    def workspace_bytes(self, n: int) -> int:
        """Bytes of workspace for n images."""
        return self.conv(n).workspace_bytes()

    def _argument(self, y: Array) -> Array | None:
        n = y.shape[1]
        if n not in self.arguments:
            self.arguments[n] = self.argument[: y.size].reshape(y.shape) if self.stage.pool > 1 else None
        return self.arguments[n]

    def forward(self, x: Array, y: Array, workspace: Array, train: bool) -> None:
        self.conv(x.shape[1]).forward(x, self.w, self.b, y, self.stage.relu, workspace, self._argument(y))

    def backward(self, x: Array, y: Array, dy: Array, dx: Array | None, workspace: Array) -> None:
        self.conv(x.shape[1]).backward(x, self.w, y, dy, self.dw, self.db, dx, self.stage.relu, workspace,
                                       self._argument(y))


def plan_conv(stage: Stage, device: Device, n: int, algo: str, workspace_limit: int | None) -> Conv:
    """The convolution op of a conv stage for n images."""
    (C, H, W), layer = stage.in_shape, stage.layer
    assert isinstance(layer, Conv2D)
    shape = ConvShape(C, n, H, W, layer.filters, *layer.window, layer.stride, layer.pad)
    return Conv(device, shape, algo, workspace_limit, pool=stage.pool)


class PoolStage:
    """Max-pooling that no convolution took in."""

    def __init__(self, stage: Stage, context: Context) -> None:
        assert isinstance(stage.layer, MaxPool2D)
        self.stage, self.device, self.layer = stage, context.device, stage.layer
        dtype = pool.arg_dtype(stage.layer.window)
        self.argument = context.device.empty(stage.out_size * context.subbatch, dtype)

    def _argument(self, y: Array) -> Array:
        return self.argument[: y.size].reshape(y.shape)

    def forward(self, x: Array, y: Array, workspace: Array, train: bool) -> None:
        layer = self.layer
        pool.max_pool(self.device, x, y, self._argument(y), layer.window, layer.stride, layer.pad)

    def backward(self, x: Array, y: Array, dy: Array, dx: Array | None, workspace: Array) -> None:
        if dx is not None:
            layer = self.layer
            pool.max_pool_backward(self.device, dy, self._argument(dy), dx, layer.window, layer.stride, layer.pad)


class FlattenStage:
    """(C,N,H,W) to (C*H*W,N): the columns of one window as large as the image, so im2col is the copy."""

    def __init__(self, stage: Stage, context: Context) -> None:
        self.stage, self.device = stage, context.device

    def _shape(self, n: int) -> ConvShape:
        C, H, W = self.stage.in_shape
        return ConvShape(C, n, H, W, 1, H, W)

    def forward(self, x: Array, y: Array, workspace: Array, train: bool) -> None:
        im2col(self.device, x, y.reshape(y.shape[:2]), self._shape(x.shape[1]))

    def backward(self, x: Array, y: Array, dy: Array, dx: Array | None, workspace: Array) -> None:
        if dx is not None:
            col2im(self.device, dy.reshape(dy.shape[:2]), dx, self._shape(dy.shape[1]))


class DenseStage:
    """y(K,N) = w(K,D) x(D,N) + b (+ ReLU)."""

    def __init__(self, stage: Stage, context: Context) -> None:
        self.stage, self.device = stage, context.device
        self.w, self.b = context.weights.views[f"{stage.name}.w"], context.weights.views[f"{stage.name}.b"]
        self.dw, self.db = context.grads.views[f"{stage.name}.w"], context.grads.views[f"{stage.name}.b"]
        self.plans: dict[int, Dense] = {}

    def plan(self, n: int) -> Dense:
        """The planned products of n samples."""
        if n not in self.plans:
            self.plans[n] = plan_dense(self.stage, self.device, n)
        return self.plans[n]

    def workspace_bytes(self, n: int) -> int:
        """Bytes of workspace for n samples."""
        return self.plan(n).workspace_bytes()

    def forward(self, x: Array, y: Array, workspace: Array, train: bool) -> None:
        x, y = _matrix(x), _matrix(y)
        self.plan(x.shape[1]).forward(x, self.w, self.b, y, self.stage.relu, workspace)

    def backward(self, x: Array, y: Array, dy: Array, dx: Array | None, workspace: Array) -> None:
        x, y, dy, dx = _matrix(x), _matrix(y), _matrix(dy), None if dx is None else _matrix(dx)
        self.plan(x.shape[1]).backward(x, self.w, y, dy, self.dw, self.db, dx, self.stage.relu, workspace)


def plan_dense(stage: Stage, device: Device, n: int) -> Dense:
    """The dense op of a dense stage for n samples."""
    return Dense(device, stage.out_shape[0], stage.in_shape[0], n)


def _matrix(x: Array) -> Array:
    return x.reshape(x.shape[0], -1)


class ActivationStage:
    """A ReLU or sigmoid that no other stage took in."""

    def __init__(self, stage: Stage, context: Context) -> None:
        self.device = context.device
        relu = stage.kind == "relu"
        self.function = activation.relu if relu else activation.sigmoid
        self.gradient = activation.relu_backward if relu else activation.sigmoid_backward

    def forward(self, x: Array, y: Array, workspace: Array, train: bool) -> None:
        self.function(self.device, x, y)

    def backward(self, x: Array, y: Array, dy: Array, dx: Array | None, workspace: Array) -> None:
        if dx is not None:
            self.gradient(self.device, y, dy, dx)


class DropoutStage:
    """Dropout whose mask follows from (seed, step): forward and backward draw it again instead of storing it."""

    def __init__(self, stage: Stage, context: Context) -> None:
        assert isinstance(stage.layer, Dropout)
        self.context, self.rate = context, stage.layer.rate
        self.seed = context.seed + sum(map(ord, stage.name))

    def _offset(self, size: int) -> int:
        return self.context.step * size

    def forward(self, x: Array, y: Array, workspace: Array, train: bool) -> None:
        device = self.context.device
        if train:
            dropout.dropout(device, x, y, self.seed, self._offset(x.size), self.rate)
        else:
            device.copy(y, x)

    def backward(self, x: Array, y: Array, dy: Array, dx: Array | None, workspace: Array) -> None:
        if dx is not None:
            dropout.dropout_backward(self.context.device, dy, dx, self.seed, self._offset(dy.size), self.rate)


class LossStage:
    """Softmax + cross-entropy on logits (K,N); keeps the loss and the label's rank of every sample."""

    def __init__(self, stage: Stage, context: Context) -> None:
        self.device = context.device
        self.losses = context.device.empty(context.subbatch)
        self.ranks = context.device.empty(context.subbatch, np.int32)

    def gradient(self, logits: Array, labels: Array, dlogits: Array, scale: float) -> None:
        """losses, and dlogits = scale * d loss / d logits."""
        losses = self.losses[: labels.size]
        softmax.softmax_cross_entropy(self.device, _matrix(logits), labels, losses, _matrix(dlogits), scale)

    def evaluate(self, logits: Array, labels: Array) -> tuple[np.ndarray, np.ndarray]:
        """Loss (n) float32 and rank (n) int32 of every sample, on the host."""
        losses, ranks = self.losses[: labels.size], self.ranks[: labels.size]
        softmax.softmax_cross_entropy(self.device, _matrix(logits), labels, losses, None, 1.0)
        softmax.label_rank(self.device, _matrix(logits), labels, ranks)
        return self.device.download(losses), self.device.download(ranks)


RunningStage = ConvStage | PoolStage | FlattenStage | DenseStage | ActivationStage | DropoutStage
_CLASSES: dict[str, Callable[[Stage, Context], RunningStage]] = {
    "conv": ConvStage, "pool": PoolStage, "flatten": FlattenStage, "dense": DenseStage, "relu": ActivationStage,
    "sigmoid": ActivationStage, "dropout": DropoutStage}


def open_stage(stage: Stage, context: Context) -> RunningStage:
    """The running form of a stage (the loss is a LossStage and made by the network)."""
    return _CLASSES[stage.kind](stage, context)
