"""What a split is: an indexable source of uint8 images and int32 labels; and the one that lives in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .image import Shape, fit_pixels

UNREADABLE = -1  # label of a row whose image could not be read (on_bad_image="skip"); the loader drops it
RESIDENT_BYTES = 512 << 20  # a set larger than this at the delivered size is resized at each read


class Split(Protocol):
    """Samples that can be read by index, from several threads at once."""

    @property
    def shape(self) -> Shape:
        """(C, H, W) of the images as delivered."""

    def __len__(self) -> int: ...

    def read(self, indices: np.ndarray, out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return images uint8 (n, H, W, C) and labels int32 (n) of the samples `indices`, int (n).

        Args: out, uint8 (at least n, H, W, C): its first n rows are filled and returned as a view.
        Raises: IndexError, ValueError or TypeError for a wrong `out`, BadImageError.
        """


@dataclass(frozen=True)
class Samples:
    """What a reader found: images uint8 (N, h, w, c) at their own size, or N paths; labels int32 (N)."""

    images: np.ndarray | list[str]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> Samples:
        """Return the samples `indices`, int (n); all of them in order is no copy."""
        if np.array_equal(indices, np.arange(len(self))):
            return self
        if isinstance(self.images, np.ndarray):
            return Samples(self.images[indices], self.labels[indices])
        return Samples([self.images[i] for i in indices], self.labels[indices])


@dataclass(frozen=True)
class Source:
    """What a reader hands over: both parts, the class names by label, where it all comes from, odd files."""

    train: Samples
    test: Samples
    class_names: list[str]
    provenance: str
    bad: dict[str, str]


def prepare(
    indices: np.ndarray, length: int, shape: Shape, out: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Check `indices` against `length` and return them with the rows to fill, uint8 (n, H, W, C)."""
    indices = np.asarray(indices)
    n, (c, h, w) = len(indices), shape
    if n and (indices.min() < 0 or indices.max() >= length):
        raise IndexError(f"read: expected indices in 0..{length - 1}, got {indices.min()}..{indices.max()}")
    if out is None:
        return indices, np.empty((n, h, w, c), np.uint8)
    if out.dtype != np.uint8:
        raise TypeError(f"read: expected out of uint8, got {out.dtype}")
    if out.shape[1:] != (h, w, c) or len(out) < n:
        raise ValueError(f"read: expected out of at least {n} x {(h, w, c)}, got {out.shape}")
    return indices, out[:n]


class ArraySplit:
    """A split in memory, resized once if the result is small enough: then a read is one gather."""

    def __init__(self, samples: Samples, shape: Shape, resident_bytes: int = RESIDENT_BYTES):
        assert isinstance(samples.images, np.ndarray)
        c, h, w = shape
        self.shape, self.labels = shape, samples.labels
        self._pixels = samples.images
        self._fitted = self._pixels.shape[1:] == (h, w, c)
        if not self._fitted and len(samples) * h * w * c <= resident_bytes:
            fitted = np.empty((len(samples), h, w, c), np.uint8)
            self._gather(np.arange(len(samples)), fitted)
            self._pixels, self._fitted = fitted, True

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: np.ndarray, out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """See `Split.read`."""
        indices, rows = prepare(indices, len(self), self.shape, out)
        self._gather(indices, rows)
        return rows, self.labels[indices]

    def _gather(self, indices: np.ndarray, rows: np.ndarray) -> None:
        if self._fitted:
            np.take(self._pixels, indices, axis=0, out=rows, mode="clip")  # "raise" copies through a buffer
            return
        for row, index in enumerate(indices):
            fit_pixels(self._pixels[index], rows[row])
