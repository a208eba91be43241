"""Parameters in one flat float32 buffer with named views, so that an update or an Allreduce is one call."""

from __future__ import annotations

import math
import zlib

import numpy as np

from ..kernels.device import Array, Device

ALIGNMENT = 64  # floats; views start on a boundary that suits every vector width and coalesced access


class Params:
    """Named arrays that share one flat buffer.

    flat: (n,) float32 on the device; each view starts on a 64-float boundary and the padding stays zero.
    views: dict name -> array of its shape, sharing memory with flat. count: number of parameters without the padding.
    """

    def __init__(self, device: Device, shapes: dict[str, tuple[int, ...]]) -> None:
        self.device = device
        self.shapes = dict(shapes)
        self.count = sum(math.prod(shape) for shape in shapes.values())
        self.flat = device.zeros(flat_length(shapes))
        self.views = views_of(self.flat, shapes)

    def download(self) -> dict[str, np.ndarray]:
        """Copies of all arrays as NumPy arrays, by name."""
        return {name: self.device.download(view) for name, view in self.views.items()}

    def upload(self, arrays: dict[str, np.ndarray]) -> None:
        """Set all arrays. Raises ValueError when names or shapes differ."""
        if set(arrays) != set(self.shapes):
            odd = ", ".join(sorted(set(arrays) ^ set(self.shapes)))
            raise ValueError(f"parameters: expected the names {', '.join(self.shapes)}, got a difference in {odd}")
        for name, view in self.views.items():
            if arrays[name].shape != self.shapes[name]:
                raise ValueError(f"parameters: expected {name}{self.shapes[name]}, got {arrays[name].shape}")
            self.device.copy(view, np.ascontiguousarray(arrays[name], np.float32))


def views_of(flat: Array, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """The named arrays within a flat buffer (n,) of the layout of Params, sharing its memory."""
    views, start = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        views[name] = flat[start : start + size].reshape(shape)
        start += _padded(size)
    return views


def flat_length(shapes: dict[str, tuple[int, ...]]) -> int:
    """Length of the flat buffer, padding counted in."""
    return sum(_padded(math.prod(shape)) for shape in shapes.values())


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def he_initial(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Weights drawn from N(0, 2/fan_in), biases zero; the same for a seed and a name whatever else the net holds.

    Source: He et al. 2015, eq. (10).
    """
    return {name: _he_normal(name, shape, seed) if len(shape) > 1 else np.zeros(shape, np.float32)
            for name, shape in shapes.items()}


def _he_normal(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
    values = generator.standard_normal(shape, np.float32)
    values *= np.float32(math.sqrt(2.0 / math.prod(shape[1:])))
    return values
