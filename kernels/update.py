"""Updates of the flat parameters: one kernel for each rule, state and all (kernels of update.cu)."""

from __future__ import annotations

import math

import numpy as np

from .conv_shape import expect_shape
from .device import Array, Device, elements


def scale(device: Device, x: Array, alpha: float) -> None:
    """x *= alpha in place. x float32 of any shape. Raises ValueError when alpha is not finite."""
    _check("scale", alpha=(alpha, -math.inf, math.inf))
    device.launch("update", "scale", elements(x.size), x, alpha, x.size)


def axpy(device: Device, alpha: float, x: Array, y: Array) -> None:
    """y += alpha x.

    x, y: equal shapes, float32. Raises ValueError when the shapes differ or alpha is not finite.
    """
    _check("axpy", alpha=(alpha, -math.inf, math.inf))
    expect_shape("axpy", y=(y.shape, x.shape))
    device.launch("update", "axpy", elements(x.size), alpha, x, y, x.size)


def sgd(device: Device, w: Array, g: Array, lr: float, weight_decay: float = 0.0) -> None:
    """w -= lr (g + weight_decay w).

    w, g: equal shapes, float32. Raises ValueError when the shapes differ or a number is negative or not
    finite.
    """
    _check("sgd", lr=(lr, 0, math.inf), weight_decay=(weight_decay, 0, math.inf))
    expect_shape("sgd", g=(g.shape, w.shape))
    device.launch("update", "sgd", elements(w.size), w, g, lr, weight_decay, w.size)


def momentum(device: Device, w: Array, g: Array, v: Array, lr: float, mu: float,
             weight_decay: float = 0.0) -> None:
    """v = mu v - lr (g + weight_decay w); w += v.

    w, g, v: equal shapes, float32; v starts as zeros. Raises ValueError when the shapes differ, mu is not
    within 0 to 1, or a number is negative or not finite. Source: Oyama et al. 2016, Algorithm 1.
    """
    _check("momentum", lr=(lr, 0, math.inf), mu=(mu, 0, 1), weight_decay=(weight_decay, 0, math.inf))
    expect_shape("momentum", g=(g.shape, w.shape), v=(v.shape, w.shape))
    device.launch("update", "momentum", elements(w.size), w, g, v, lr, mu, weight_decay, w.size)


def adagrad(device: Device, w: Array, g: Array, h: Array, lr: float, eps: float = 1e-8,
            weight_decay: float = 0.0) -> None:
    """h += g'^2; w -= lr g' / (sqrt(h) + eps) with g' = g + weight_decay w. No gradient: no move.

    w, g, h: equal shapes, float32; h starts as zeros. Raises ValueError when the shapes differ, eps is not
    positive in float32, or a number is negative or not finite. Source: Duchi et al. 2011; Dean et al. 2012.
    """
    _check("adagrad", lr=(lr, 0, math.inf), eps=(eps, 0, math.inf), weight_decay=(weight_decay, 0, math.inf))
    if not np.float32(eps) > 0:
        raise ValueError(f"adagrad: expected eps positive in float32, got {eps}")
    expect_shape("adagrad", g=(g.shape, w.shape), h=(h.shape, w.shape))
    device.launch("update", "adagrad", elements(w.size), w, g, h, lr, eps, weight_decay, w.size)


def _check(op: str, **values: tuple[float, float, float]) -> None:
    for name, (value, least, greatest) in values.items():
        if not (math.isfinite(value) and least <= value <= greatest):
            raise ValueError(f"{op}: expected {name} finite and from {least} to {greatest}, got {value}")
