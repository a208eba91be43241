"""Seconds of one GEMM, from a measured grid or from a few numbers that one has read about."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class GemmTable:
    """Times measured on a grid in (m, n, k), interpolated inside it.

    m, n, k: ascending grid lines, powers of two unless calibration refined a cell.
    seconds: (len(m), len(n), len(k)) float64; NaN = corner not measured, filled here from the nearest
        measured corner by its flops, and reported as outside.
    residual: relative standard deviation of check points inside the grid.

    Source: Oyama et al. 2016, eq. (6): eight coefficients a cell, which is exactly the trilinear interpolant
    of the times at its eight corners.
    """

    m: Array
    n: Array
    k: Array
    seconds: Array
    residual: float = 0.0
    measured: Array = field(init=False)

    def __post_init__(self) -> None:
        measured = np.isfinite(self.seconds)
        object.__setattr__(self, "measured", measured)
        object.__setattr__(self, "seconds", _filled(self.m, self.n, self.k, self.seconds, measured))

    def time(self, m: Array, n: Array, k: Array) -> tuple[Array, Array]:
        """Seconds of c(m, n) = a(m, k) b(k, n), float64, and where they are not interpolated (bool).

        Above the grid the time of the nearest point on it grows with the flops; below it that time is kept,
        because what remains there is the cost of the call.
        """
        want = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (m, n, k)))
        lines = (self.m, self.n, self.k)
        near = [np.clip(v, line[0], line[-1]) for v, line in zip(want, lines, strict=True)]
        seconds, outside = self._interpolate([_cell(v, line) for v, line in zip(near, lines, strict=True)])
        for v, w in zip(want, near, strict=True):
            seconds = seconds * np.maximum(v / w, 1.0)
            outside = outside | (v != w)
        return seconds, outside

    def _interpolate(self, cells: list[tuple[Array, Array, Array]]) -> tuple[Array, Array]:
        seconds = np.zeros(cells[0][0].shape)
        outside = np.zeros(cells[0][0].shape, dtype=bool)
        for corner in product((0, 1), repeat=3):
            at = tuple(cell[side] for cell, side in zip(cells, corner, strict=True))
            weight = np.ones_like(seconds)
            for (_, _, part), side in zip(cells, corner, strict=True):
                weight = weight * (part if side else 1.0 - part)
            seconds = seconds + weight * self.seconds[at]
            outside = outside | ((weight > 0) & ~self.measured[at])
        return seconds, outside


@dataclass(frozen=True)
class GemmEstimate:
    """A GEMM of a machine that nobody measured: the slower of its arithmetic and its memory traffic.

    peak_flops: flop/s of the device; efficiency: the fraction that a large GEMM reaches.
    bandwidth: bytes/s to the device's memory; overhead: seconds of a launch.
    tile: (rows, columns) of the output that one unit computes at a time; units: how many units there are.
        An output smaller than a tile, or fewer tiles than units, leaves the rest idle; tile (1, 1) on one unit
        is the plain roofline.
    residual: relative standard deviation that one gives the estimate.
    """

    peak_flops: float
    efficiency: float
    bandwidth: float
    overhead: float = 0.0
    tile: tuple[int, int] = (1, 1)
    units: int = 1
    residual: float = 0.0

    def time(self, m: Array, n: Array, k: Array) -> tuple[Array, Array]:
        """Seconds of c(m, n) = a(m, k) b(k, n), float64, and False everywhere: there is no grid to leave."""
        m, n, k = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (m, n, k)))
        tiles = np.ceil(m / self.tile[0]) * np.ceil(n / self.tile[1])
        waves = np.ceil(tiles / self.units)
        flops = waves * self.units * 2.0 * self.tile[0] * self.tile[1] * k
        compute = flops / (self.peak_flops * self.efficiency)
        memory = 4.0 * (m * k + k * n + m * n) / self.bandwidth
        return self.overhead + np.maximum(compute, memory), np.zeros(m.shape, dtype=bool)


def _cell(value: Array, line: Array) -> tuple[Array, Array, Array]:
    """Lower index, upper index and position in [0, 1] of each value between the grid lines around it."""
    low = np.clip(np.searchsorted(line, value, side="right") - 1, 0, max(len(line) - 2, 0))
    high = np.minimum(low + 1, len(line) - 1)
    width = np.where(high > low, line[high] - line[low], 1.0)
    return low, high, (value - line[low]) / width


def _filled(m: Array, n: Array, k: Array, seconds: Array, measured: Array) -> Array:
    """Corners that were not measured take the nearest measured corner's time, scaled by flops."""
    points = np.stack(np.meshgrid(np.log2(m), np.log2(n), np.log2(k), indexing="ij"), axis=-1)
    known, times = points[measured], seconds[measured]
    full = np.array(seconds, dtype=np.float64)
    for corner in np.argwhere(~measured):
        here = points[tuple(corner)]
        nearest = int(np.abs(known - here).sum(axis=1).argmin())
        full[tuple(corner)] = times[nearest] * 2.0 ** float((here - known[nearest]).sum())
    return full
