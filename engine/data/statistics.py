"""Mean and standard deviation of each channel of a split."""

from __future__ import annotations

import numpy as np

from .order import subset
from .split import UNREADABLE, Split

CHUNK = 256  # images read at once
LEVELS = np.arange(256) / 255


def channel_statistics(split: Split, at_most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and std, float32 (C) each, of pixels / 255 in `at_most` images drawn from `split`.

    A std below one grey level counts as one level, so that dividing by it is safe.
    Raises: what reading raises; ValueError if no image can be read.
    """
    channels, n = split.shape[0], len(split)
    chosen = subset(n, at_most, seed=0)
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(chosen), CHUNK):
        images, labels = split.read(chosen[start : start + CHUNK])
        images = images[labels != UNREADABLE]
        for channel in range(channels):
            counts[channel] += np.bincount(images[..., channel].ravel(), minlength=256)
    if not counts.any():
        raise ValueError(f"statistics: expected readable images, got none among {len(chosen)}")
    total = counts.sum(axis=1)
    mean = counts @ LEVELS / total
    variance = counts @ LEVELS**2 / total - mean**2
    std = np.sqrt(np.maximum(variance, 1 / 255**2))
    return mean.astype(np.float32), std.astype(np.float32)
