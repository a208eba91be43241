"""Random affine warps of training images ("deform" in SPRINT), drawn from seed, epoch and sample without any state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Augment:
    """Ranges of the warp: rotation in degrees either way, scale as a share either way, shift as a share of the size."""

    rotation: float = 10.0
    scale: float = 0.1
    shift: float = 0.06
    mirror: bool = False

    def affine(self, indices: np.ndarray, epoch: int, seed: int, in_size: tuple[int, int],
               out_size: tuple[int, int]) -> np.ndarray:
        """Matrices (n,6) float32 for kernels.image.deform, about the centre of the image.

        indices (n,) sample numbers; sizes (height, width) in pixels. The warp of a sample depends on (seed, epoch,
        index) alone, so that ranks, threads and a resumed run draw the same.
        """
        draw = _uniform(indices, epoch, seed, 5)
        angle = np.deg2rad(self.rotation) * (2 * draw[0] - 1)
        zoom = 1 + self.scale * (2 * draw[1] - 1)
        flip = np.where(self.mirror & (draw[4] < 0.5), -1.0, 1.0)
        sh, sw = in_size[0] / out_size[0] * zoom, in_size[1] / out_size[1] * zoom
        a, b = np.cos(angle) * sw * flip, -np.sin(angle) * sh
        d, e = np.sin(angle) * sw * flip, np.cos(angle) * sh
        centre_p, centre_q = (out_size[0] - 1) / 2, (out_size[1] - 1) / 2
        c = (in_size[1] - 1) / 2 + self.shift * in_size[1] * (2 * draw[2] - 1) - a * centre_q - b * centre_p
        f = (in_size[0] - 1) / 2 + self.shift * in_size[0] * (2 * draw[3] - 1) - d * centre_q - e * centre_p
        return np.stack([a, b, c, d, e, f], axis=1).astype(np.float32)


def _uniform(indices: np.ndarray, epoch: int, seed: int, count: int) -> np.ndarray:
    """(count, n) numbers in [0, 1): SplitMix64 of the counters (Steele et al. 2014)."""
    stream = np.uint64((seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03) % 2**64)
    with np.errstate(over="ignore"):
        z = indices.astype(np.uint64) * np.uint64(count) + np.arange(count, dtype=np.uint64)[:, None]
        z = (z + stream) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
