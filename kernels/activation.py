"""Activations and their gradients from the output (kernels of activation.cu)."""

from __future__ import annotations

from .conv_shape import expect_shape
from .device import Array, Device, elements


def relu(device: Device, x: Array, y: Array) -> None:
    """y = max(x, 0), NaN kept.

    x, y: equal shapes, float32; y may be x. Raises ValueError when the shapes differ.
    """
    expect_shape("relu", y=(y.shape, x.shape))
    device.launch("activation", "relu", elements(x.size), x, y, x.size)


def relu_backward(device: Device, y: Array, dy: Array, dx: Array) -> None:
    """dx = dy where y > 0, else 0.

    y, dy, dx: equal shapes, float32; dx may be dy. Raises ValueError when the shapes differ.
    """
    expect_shape("relu_backward", dy=(dy.shape, y.shape), dx=(dx.shape, y.shape))
    device.launch("activation", "relu_backward", elements(y.size), y, dy, dx, y.size)


def sigmoid(device: Device, x: Array, y: Array) -> None:
    """y = 1 / (1 + exp(-x)).

    x, y: equal shapes, float32; y may be x. Raises ValueError when the shapes differ.
    """
    expect_shape("sigmoid", y=(y.shape, x.shape))
    device.launch("activation", "sigmoid", elements(x.size), x, y, x.size)


def sigmoid_backward(device: Device, y: Array, dy: Array, dx: Array) -> None:
    """dx = dy y (1 - y).

    y, dy, dx: equal shapes, float32; dx may be dy. Raises ValueError when the shapes differ.
    """
    expect_shape("sigmoid_backward", dy=(dy.shape, y.shape), dx=(dx.shape, y.shape))
    device.launch("activation", "sigmoid_backward", elements(y.size), y, dy, dx, y.size)
