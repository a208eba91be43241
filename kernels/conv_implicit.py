"""Implicit convolution: the same matrix products with the columns formed on the fly, never in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .conv_shape import ConvShape
from .device import Device

if TYPE_CHECKING:
    from .conv import Algorithm


def implicit(device: Device, shape: ConvShape, limit_bytes: int | None) -> Algorithm:
    """The implicit algorithm of a device."""
    raise RuntimeError(f"conv: expected the explicit algorithm on {device.name}, got implicit")
