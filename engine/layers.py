"""What a network is made of: frozen descriptions of layers with their shape rules; stages.py runs them.

Shapes are per sample, (C, H, W); a dense activation is (D, 1, 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..kernels.conv_shape import output_extent

Shape = tuple[int, int, int]
Pair = tuple[int, int]
ParameterShapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Conv2D:
    """Convolution with bias: y(K,P,Q) = w(K,C,R,S) * x(C,H,W) + b(K)."""

    filters: int
    window: Pair = (3, 3)
    stride: Pair = (1, 1)
    pad: Pair = (0, 0)

    def output_shape(self, shape: Shape) -> Shape:
        """(K, P, Q). Raises ValueError when the filter does not fit."""
        if self.filters < 1:
            raise ValueError(f"Conv2D: expected at least 1 filter, got {self.filters}")
        return self.filters, *_window_output("Conv2D", shape, self.window, self.stride, self.pad)

    def parameter_shapes(self, shape: Shape) -> ParameterShapes:
        """w (K,C,R,S) and b (K,)."""
        return {"w": (self.filters, shape[0], *self.window), "b": (self.filters,)}


@dataclass(frozen=True)
class MaxPool2D:
    """Maximum over windows, floor rule; the first maximum takes the gradient."""

    window: Pair = (2, 2)
    stride: Pair = (2, 2)
    pad: Pair = (0, 0)

    def output_shape(self, shape: Shape) -> Shape:
        """(C, P, Q). Raises ValueError when the window does not fit."""
        return shape[0], *_window_output("MaxPool2D", shape, self.window, self.stride, self.pad)

    def parameter_shapes(self, shape: Shape) -> ParameterShapes:
        """No parameters."""
        return {}


@dataclass(frozen=True)
class Dense:
    """Fully connected layer: y(K) = w(K,D) x(D) + b(K), with x flattened in (C, H, W) order."""

    units: int

    def output_shape(self, shape: Shape) -> Shape:
        """(K, 1, 1)."""
        if self.units < 1:
            raise ValueError(f"Dense: expected at least 1 unit, got {self.units}")
        return self.units, 1, 1

    def parameter_shapes(self, shape: Shape) -> ParameterShapes:
        """w (K,D) and b (K,)."""
        return {"w": (self.units, math.prod(shape)), "b": (self.units,)}


@dataclass(frozen=True)
class _Pointwise:
    def output_shape(self, shape: Shape) -> Shape:
        """The input's shape."""
        return shape

    def parameter_shapes(self, shape: Shape) -> ParameterShapes:
        """No parameters."""
        return {}


@dataclass(frozen=True)
class ReLU(_Pointwise):
    """max(x, 0)."""


@dataclass(frozen=True)
class Sigmoid(_Pointwise):
    """1 / (1 + exp(-x))."""


@dataclass(frozen=True)
class Dropout(_Pointwise):
    """While training, zero a share `rate` of the elements and scale the others by 1/(1-rate)."""

    rate: float = 0.5

    def output_shape(self, shape: Shape) -> Shape:
        """The input's shape. Raises ValueError for a rate outside [0, 1)."""
        if not 0 <= self.rate < 1:
            raise ValueError(f"Dropout: expected a rate from 0 to below 1, got {self.rate}")
        return shape


@dataclass(frozen=True)
class SoftmaxCrossEntropy(_Pointwise):
    """Softmax over the K logits and the loss -log p[label]; the last layer of every net."""


Layer = Conv2D | MaxPool2D | Dense | ReLU | Sigmoid | Dropout | SoftmaxCrossEntropy


def _window_output(op: str, shape: Shape, window: Pair, stride: Pair, pad: Pair) -> Pair:
    return (output_extent(op, "height", shape[1], window[0], stride[0], pad[0]),
            output_extent(op, "width", shape[2], window[1], stride[1], pad[1]))


@dataclass(frozen=True)
class Placed:
    """A layer at its place in a net: its name (conv1, pool1, fc14, ...) and the shapes around it."""

    name: str
    layer: Layer
    in_shape: Shape
    out_shape: Shape

    @property
    def parameter_shapes(self) -> ParameterShapes:
        """Shapes by full name, for example conv1.w."""
        return {f"{self.name}.{key}": shape for key, shape in self.layer.parameter_shapes(self.in_shape).items()}


@dataclass(frozen=True)
class NetSpec:
    """A network: its input shape (C, H, W) and its layers, checked to fit together."""

    name: str
    in_shape: Shape
    layers: tuple[Layer, ...]
    note: str = ""

    def __post_init__(self) -> None:
        if not self.layers or not isinstance(self.layers[-1], SoftmaxCrossEntropy):
            raise ValueError(f"{self.name}: expected SoftmaxCrossEntropy as the last layer and only there")
        if any(isinstance(layer, SoftmaxCrossEntropy) for layer in self.layers[:-1]):
            raise ValueError(f"{self.name}: expected SoftmaxCrossEntropy as the last layer and only there")
        if self.placed[-1].in_shape[1:] != (1, 1):
            raise ValueError(f"{self.name}: expected logits (K,1,1) before the loss, got {self.placed[-1].in_shape}")

    @property
    def placed(self) -> list[Placed]:
        """The layers with names and shapes; layers with weights are counted, the others take the last number."""
        result, shape, number = [], self.in_shape, 0
        for layer in self.layers:
            number += bool(layer.parameter_shapes(shape))
            out = layer.output_shape(shape)
            result.append(Placed(f"{_PREFIX[type(layer)]}{number}", layer, shape, out))
            shape = out
        return result

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.placed[-1].in_shape[0]

    @property
    def parameter_shapes(self) -> ParameterShapes:
        """Shapes of all parameters by name, in the order of the flat buffer."""
        return {name: shape for placed in self.placed for name, shape in placed.parameter_shapes.items()}

    @property
    def parameter_count(self) -> int:
        """N_Param of Oyama et al. 2016, eq. (3)."""
        return sum(math.prod(shape) for shape in self.parameter_shapes.values())


_PREFIX = {Conv2D: "conv", MaxPool2D: "pool", Dense: "fc", ReLU: "relu", Sigmoid: "sigmoid", Dropout: "dropout",
           SoftmaxCrossEntropy: "loss"}
