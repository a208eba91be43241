"""Tables of GEMM times: powers of two around what the nets call, refined where a check inside a cell is far off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product as combinations

import numpy as np

from .gemm_time import GemmTable
from .needs import Product, Triple

Array = np.ndarray
Measure = Callable[[Product], float]
FAR = 0.10  # error of a check that its cell is refined for
USUAL = FAR / 2  # residual where no check inside a cell is left


class Grid:
    """Times on lines in m, n and k (seconds: one axis each, NaN where not measured), to which lines can be added."""

    def __init__(self, lines: Sequence[Iterable[float]]) -> None:
        self.lines = [np.array(sorted(line), np.float64) for line in lines]
        self.seconds = np.full([len(line) for line in self.lines], np.nan)

    def put(self, point: Triple, seconds: float) -> None:
        """A time at a point. A line that is new holds, elsewhere, what its neighbours interpolate to."""
        for axis, value in enumerate(point):
            if value not in self.lines[axis]:
                self._insert(axis, value)
        where = tuple(int(np.searchsorted(line, v)) for line, v in zip(self.lines, point, strict=True))
        self.seconds[where] = seconds

    def _insert(self, axis: int, value: float) -> None:
        line = self.lines[axis]
        place = int(np.searchsorted(line, value))
        between = np.full(np.take(self.seconds, 0, axis).shape, np.nan)
        if 0 < place < len(line):
            part = (value - line[place - 1]) / (line[place] - line[place - 1])
            low, high = (np.take(self.seconds, i, axis) for i in (place - 1, place))
            between = low + part * (high - low)
        self.lines[axis] = np.insert(line, place, value)
        self.seconds = np.insert(self.seconds, place, between, axis)

    def table(self, residual: float = 0.0) -> GemmTable:
        """As the model reads it."""
        m, n, k = self.lines
        return GemmTable(m, n, k, rounded(self.seconds), residual)


def rounded(seconds: Array) -> Array:
    """To four digits: the fifth is noise, and the file is read by people."""
    digits = 3 - np.floor(np.log10(np.where(np.isfinite(seconds), seconds, 1.0)))
    return np.where(np.isfinite(seconds), np.rint(seconds * 10.0**digits) / 10.0**digits, np.nan)


def measure_table(wanted: Sequence[Product], measure: Measure, limit_s: float) -> GemmTable:
    """The table of one path that serves the calls `wanted`, each of which is also a check of its cell.

    measure(call): its seconds. Calls that would take longer than limit_s are not made: the table ends before them,
    and the model goes on by flops.
    """
    timer = _Limited(measure, limit_s)
    grid = Grid([_lines(wanted, axis) for axis in range(3)])
    corners = {corner for product in wanted for corner in _corners(grid, product.sizes)}
    for corner in sorted(corners, key=math.prod):
        seconds = timer(_nearest(wanted, corner).resized(corner))
        if seconds is not None:
            grid.put(corner, seconds)
    return _refined(grid, wanted, timer)


class _Limited:
    """Measures only calls that take no longer than a limit, judged by the best rate so far."""

    def __init__(self, measure: Measure, limit_s: float) -> None:
        self.measure, self.limit_s = measure, limit_s
        self.best = 0.0  # flop/s

    def __call__(self, product: Product) -> float | None:
        if self.best and product.flops / self.best > self.limit_s:
            return None
        seconds = self.measure(product)
        self.best = max(self.best, product.flops / seconds)
        return seconds


def _refined(grid: Grid, wanted: Sequence[Product], timer: _Limited) -> GemmTable:
    """The worst check becomes a corner of smaller cells, until all are near.

    Before that it is measured again, for whatever else the machine does makes times longer: the shorter one counts.
    """
    calls = {product.sizes: product for product in wanted if not _on_corner(grid, product.sizes)}
    checks = {sizes: timer(product) for sizes, product in calls.items()}
    times = {sizes: seconds for sizes, seconds in checks.items() if seconds is not None}
    while times:
        off = errors(grid.table(), times)
        worst = max(off, key=lambda sizes: abs(off[sizes]))
        if abs(off[worst]) <= FAR:
            return grid.table(float(np.sqrt(np.mean(np.square(list(off.values()))))))
        if worst in calls:
            times[worst] = min(times[worst], timer.measure(calls.pop(worst)))
        else:
            grid.put(worst, times.pop(worst))
    return grid.table(USUAL)


def errors(table: GemmTable, times: dict[Triple, float]) -> dict[Triple, float]:
    """(time of the table) / (measured time) - 1 by sizes."""
    return {sizes: float(table.time(*map(np.asarray, sizes))[0]) / seconds - 1 for sizes, seconds in times.items()}


def _on_corner(grid: Grid, sizes: Triple) -> bool:
    """Whether the time at these sizes is a measured one already."""
    if not all(value in line for value, line in zip(sizes, grid.lines, strict=True)):
        return False
    where = tuple(int(np.searchsorted(line, v)) for line, v in zip(grid.lines, sizes, strict=True))
    return bool(np.isfinite(grid.seconds[where]))


def _lines(wanted: Sequence[Product], axis: int) -> set[float]:
    """Powers of two around all values of an axis; the depth of a convolution counts in windows."""
    unit = _unit(wanted, axis)
    return {unit * 2.0**power for product in wanted
            for power in _powers(product.sizes[axis] / unit)}


def _powers(value: float) -> tuple[int, int]:
    return math.floor(math.log2(value) + 1e-9), math.ceil(math.log2(value) - 1e-9)


def _unit(wanted: Sequence[Product], axis: int) -> float:
    depth = 1 if wanted[0].path.endswith("backward_filter") else 2
    windows = {product.shape.R * product.shape.S for product in wanted if product.shape}
    return float(windows.pop()) if axis == depth and len(windows) == 1 else 1.0


def _corners(grid: Grid, sizes: Triple) -> Iterable[Triple]:
    """Corners of the cell around a point; fewer where it lies on lines."""
    sides = []
    for value, line in zip(sizes, grid.lines, strict=True):
        low = int(np.searchsorted(line, value * (1 + 1e-9), side="right")) - 1
        sides.append({float(line[low]), float(line[min(low + (line[low] < value * (1 - 1e-9)), len(line) - 1)])})
    return [(m, n, k) for m, n, k in combinations(*sides)]


def _nearest(wanted: Sequence[Product], point: Triple) -> Product:
    """The call whose sizes are nearest by their ratios."""
    def far(product: Product) -> float:
        return sum(abs(math.log(a / b)) for a, b in zip(product.sizes, point, strict=True))

    return min(wanted, key=far)
