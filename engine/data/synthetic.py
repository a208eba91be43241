"""Images made from a seed, each on its own: no files, no memory, and a weak pattern of its class to learn."""

from __future__ import annotations

import numpy as np

from .image import Shape
from .split import prepare

TRAIN_IMAGES, TEST_IMAGES, CLASSES = 10_000, 256, 1000
GRID = 8  # a class pattern has GRID x GRID cells
PATTERN, NOISE = 64, 128  # levels of each, uniform, powers of two
OFFSET = 32  # centres their sum
MEAN = ((NOISE - 1) / 2 + (PATTERN - 1) / 2 + OFFSET) / 255
STD = ((NOISE**2 - 1) / 12 + (PATTERN**2 - 1) / 12) ** 0.5 / 255


def random_bytes(n: int, *key: int) -> np.ndarray:
    """Return uint8 (n), uniform, that depend only on the integers of `key` (PCG64's guaranteed stream)."""
    words = np.random.PCG64(np.random.SeedSequence(key)).random_raw(-(-n // 8))
    return words.astype("<u8", copy=False).view(np.uint8)[:n]


class SyntheticSplit:
    """Sample i has label i mod classes and pixels pattern[label] + noise(seed, part, i), uint8.

    Args: part: 0 train, 1 test: other noise, the same patterns.
    """

    def __init__(self, length: int, classes: int, shape: Shape, seed: int, part: int):
        c, h, w = shape
        self.shape, self._length, self._classes, self._key = shape, length, classes, (seed, part)
        cells = random_bytes(classes * GRID * GRID * c, seed).reshape(classes, GRID, GRID, c)
        self._patterns = cells % PATTERN + OFFSET
        self._bands = [slice(-(-h * g // GRID), -(-h * (g + 1) // GRID)) for g in range(GRID)]
        self._columns = np.arange(w) * GRID // w

    def __len__(self) -> int:
        return self._length

    def read(self, indices: np.ndarray, out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """See `Split.read`."""
        indices, rows = prepare(indices, len(self), self.shape, out)
        labels = (indices % self._classes).astype(np.int32)
        for row, index, label in zip(rows, indices, labels, strict=True):
            noise = random_bytes(row.size, *self._key, int(index)).reshape(row.shape)
            np.bitwise_and(noise, NOISE - 1, out=row)
            pattern = self._patterns[label][:, self._columns]
            for band, cells in zip(self._bands, pattern, strict=True):
                row[band] += cells
        return rows, labels
