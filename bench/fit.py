"""Straight lines through noisy times: what the calibration turns its measurements into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .machine import Allreduce, Linear

Array = np.ndarray
ROUNDS = 30  # of reweighting; it settles within a few
NEAR = 1.5  # typical deviations within which a measurement counts in full
SIGMA = 1.4826  # standard deviations in a median absolute deviation, of normal noise
STRAIGHT = 0.05  # residual up to which a line is kept
FLOOR = 1e-4  # relative deviation below which all measurements count in full: clocks are no better


def fit_linear(elements: Sequence[float] | Array, seconds: Sequence[float] | Array) -> Linear:
    """alpha * elements + beta through (n,) measurements > 0, each weighed by its relative deviation; none negative.

    Measurements that stand out count less (Huber's weights), so a few that something disturbed do no harm.
    """
    x, t = (np.asarray(values, np.float64) for values in (elements, seconds))
    columns = [x, np.ones_like(x)] if np.ptp(x) else [x]  # one size alone says nothing of beta
    values, residual = _robust(columns, t)
    return Linear(values[0], values[1] if len(values) > 1 else 0.0, residual)


def fit_two(first: Sequence[float] | Array, second: Sequence[float] | Array,
            seconds: Sequence[float] | Array) -> Linear:
    """alpha * first + beta * second through (n,) measurements > 0, like fit_linear."""
    x, y, t = (np.asarray(values, np.float64) for values in (first, second, seconds))
    values, residual = _robust([x, y], t)
    return Linear(values[0], values[1], residual)


def fit_curve(elements: Sequence[float] | Array, seconds: Sequence[float] | Array) -> Linear:
    """The straight line where it does; else it keeps the measured points, which must have been measured with care.

    residual then is what a point is off from the line between its neighbours, its own noise counted in.
    """
    line = fit_linear(elements, seconds)
    x = np.unique(elements)
    if line.residual <= STRAIGHT or len(x) < 3:
        return line
    t = np.array([np.median(np.asarray(seconds)[np.asarray(elements) == value]) for value in x])
    between = np.array([np.interp(x[i], np.delete(x, i), np.delete(t, i)) for i in range(1, len(x) - 1)])
    residual = min(line.residual, SIGMA * float(np.median(np.abs(between / t[1:-1] - 1))))
    return replace(line, residual=residual, points=tuple(zip(x.tolist(), t.tolist(), strict=True)))


def fit_kernel(sizes: Sequence[tuple[float, float]], seconds: Sequence[float]) -> Linear:
    """alpha * elements + gamma * rows + beta through calls of (elements, rows), where that does; else fit_curve."""
    elements, rows = np.array(sizes, np.float64).T
    curve, columns = fit_curve(elements, seconds), [elements, rows, np.ones_like(rows)]
    if len(sizes) <= len(columns) or np.linalg.matrix_rank(np.stack([c / c.max() for c in columns])) < len(columns):
        return curve
    (alpha, gamma, beta), residual = _robust(columns, np.asarray(seconds, np.float64))
    return Linear(alpha, beta, residual, gamma=gamma) if residual <= min(STRAIGHT, curve.residual) else curve


def fit_allreduce(nodes: Sequence[int] | Array, parameters: Sequence[int] | Array,
                  seconds: Sequence[float] | Array) -> Allreduce:
    """(alpha log2(nodes) + beta) * parameters + latency log2(nodes) through (n,) measurements > 0."""
    p, t = (np.asarray(values, np.float64) for values in (parameters, seconds))
    doublings = np.log2(np.asarray(nodes, np.float64))
    columns = [doublings * p, p, doublings]
    (alpha, beta, latency), residual = _robust(columns, t)
    return Allreduce(alpha, beta, latency, residual)


def spread(values: Sequence[float] | Sequence[int], most: int) -> list:
    """At most so many of the values, ascending: the ends, and between them as even as may be by their ratios."""
    ordered = sorted(set(values))
    if len(ordered) <= most:
        return ordered
    wanted = np.geomspace(ordered[0], ordered[-1], most)
    return sorted({min(ordered, key=lambda value: abs(np.log(value / target))) for target in wanted})


def relative_spread(values: Sequence[float] | Array) -> float:
    """Standard deviation of the bulk of the values over their median: outliers do not count."""
    array = np.asarray(values, np.float64)
    middle = float(np.median(array))
    return SIGMA * float(np.median(np.abs(array - middle))) / middle


def _robust(columns: list[Array], t: Array) -> tuple[list[float], float]:
    """Coefficients >= 0 of the columns, and the relative standard deviation of the bulk about them."""
    relative = [column / t for column in columns]
    weights = np.ones_like(t)
    for _ in range(ROUNDS):
        values = _not_negative(relative, weights)
        off = np.abs(sum(v * column for v, column in zip(values, relative, strict=True)) - 1)
        scale = NEAR * max(SIGMA * float(np.median(off)), FLOOR)
        weights = np.minimum(1.0, scale / np.maximum(off, 1e-300))
    return values, SIGMA * float(np.median(off)) if len(t) > len(columns) else 0.0


def _not_negative(columns: list[Array], weights: Array) -> list[float]:
    """Weighted least squares of sum(v * column) = 1 over v >= 0: columns that would turn negative are left out."""
    used = list(range(len(columns)))
    root = np.sqrt(weights)
    while used:
        matrix = np.stack([columns[i] * root for i in used], axis=1)
        size = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
        found = np.linalg.lstsq(matrix / size, root, rcond=None)[0] / size
        if np.all(found >= 0):
            return [float(found[used.index(i)]) if i in used else 0.0 for i in range(len(columns))]
        used.pop(int(np.argmin(found * size)))
    return [0.0] * len(columns)
