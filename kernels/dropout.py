"""Dropout with a mask that is drawn again instead of stored (kernel of dropout.cu)."""

from __future__ import annotations

from .conv_shape import expect_shape
from .device import Array, Device, elements

WORDS = 2**32


def dropout(device: Device, x: Array, y: Array, seed: int, offset: int, rate: float) -> None:
    """y = x / (1 - rate) where the element is kept, else 0.

    x, y: equal shapes, float32; y may be x. The mask depends on seed, offset (both 0 to 2^63-1) and the
    element's index only: equal ones draw the same mask, two offsets never share a number. rate: probability
    to drop, in [0, 1). Raises ValueError when the shapes differ or a number is out of range. Source:
    Srivastava et al. 2014.
    """
    expect_shape("dropout", y=(y.shape, x.shape))
    threshold, factor = _threshold(rate)
    stream = _stream(seed, offset)
    device.launch("dropout", "dropout", elements(x.size), x, y, *stream, threshold, factor, x.size)


def dropout_backward(device: Device, dy: Array, dx: Array, seed: int, offset: int, rate: float) -> None:
    """dx = dy / (1 - rate) where the forward pass of equal seed, offset and rate kept the element, else 0.

    dy, dx: equal shapes, float32; dx may be dy. Raises ValueError as dropout does.
    """
    expect_shape("dropout_backward", dx=(dx.shape, dy.shape))
    dropout(device, dy, dx, seed, offset, rate)


def _threshold(rate: float) -> tuple[int, float]:
    """Least of the 2^32 words that keeps an element, and the factor that keeps the expectation."""
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: expected rate from 0 to less than 1, got {rate}")
    threshold = min(round(rate * WORDS), WORDS - 1)
    return threshold, WORDS / (WORDS - threshold)


def _stream(seed: int, offset: int) -> tuple[int, int]:
    for name, value in (("seed", seed), ("offset", offset)):
        if not 0 <= value < 2**63:
            raise ValueError(f"dropout: expected {name} from 0 to 2^63-1, got {value}")
    return seed, offset
