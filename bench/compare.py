"""Two result files of the kernel benchmark side by side: what has become slower, and is it more than chance?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..engine.errors import UsageError
from .environment import SAME
from .files import read_json

ALPHA = 0.01  # a difference that chance makes less often than this is one
EXACT_PAIRS = 400  # with at most so many pairs of samples, and no ties, the distribution is counted out
Verdict = Literal["same", "slower", "faster"]


@dataclass(frozen=True)
class Compared:
    """One case of both files: medians in ms, ratio b/a (above 1 is slower), and the chance p that they are equal."""

    name: str
    a_ms: float
    b_ms: float
    p: float
    threshold: float

    @property
    def ratio(self) -> float:
        """Median of b over median of a."""
        return self.b_ms / self.a_ms

    @property
    def verdict(self) -> Verdict:
        """'slower' or 'faster' when the difference is both beyond the threshold and beyond chance."""
        if self.p >= ALPHA or abs(self.ratio - 1) < self.threshold:
            return "same"
        return "slower" if self.ratio > 1 else "faster"


def compare_files(a: Path, b: Path, *, threshold: float, force: bool = False) -> tuple[list[Compared], list[str]]:
    """Cases that both files timed, in the order of `a`, and the names of those that only one of them timed.

    threshold: relative change of the median that matters (0.05 is 5%). Raises UsageError for a file that is no result,
    for nothing in common, and, unless `force`, when machines, devices or thread counts differ.
    """
    (machine_a, cases_a), (machine_b, cases_b) = _load(a), _load(b)
    differing = [key for key in SAME if machine_a.get(key) != machine_b.get(key)]
    if differing and not force:
        key = differing[0]
        raise UsageError(f"compare: expected results of one machine, got {key} '{machine_a.get(key)}' and "
                         f"'{machine_b.get(key)}'; --force compares them all the same")
    both = [name for name in cases_a if name in cases_b]
    if not both:
        raise UsageError(f"compare: expected cases in common, got none in {a} and {b}")
    compared = [Compared(name, float(np.median(cases_a[name])), float(np.median(cases_b[name])),
                         mann_whitney(cases_a[name], cases_b[name]), threshold) for name in both]
    return compared, sorted(set(cases_a) ^ set(cases_b))


def _load(path: Path) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """(machine, samples in ms by case) of a file of `sprint bench --json` or of pytest-benchmark."""
    try:
        data = read_json(path)
    except (ValueError, OSError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise UsageError(f"compare: expected a result file, got {path} ({reason})") from None
    try:
        if "benchmarks" in data:
            machine = data["machine_info"]["sprint"]
            cases = {e["extra_info"]["problem"]: [1e3 * s for s in e["stats"]["data"]] for e in data["benchmarks"]}
        else:
            machine = data["machine"]
            cases = {_name(case): case["samples_ms"] for case in data["cases"] if case["status"] == "ok"}
        if not all(samples and min(samples) > 0 for samples in cases.values()):
            raise ValueError
        return dict(machine), cases
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"compare: expected a machine and cases with samples in {path}, got something else") from None


def _name(case: dict[str, Any]) -> str:
    return case["problem"] + ("" if case["block"] is None else f" block {case['block']}")


def mann_whitney(x: Sequence[float], y: Sequence[float]) -> float:
    """Two-sided p of the Mann-Whitney U test that x and y come from one distribution.

    Exact for few samples without ties; otherwise the normal approximation with corrections for ties and continuity.
    Source: Mann and Whitney 1947.
    """
    n, m = len(x), len(y)
    values = np.concatenate([x, y])
    ranks, ties = _ranks(values)
    u = float(ranks[:n].sum() - n * (n + 1) / 2)
    if n * m <= EXACT_PAIRS and not ties.size:
        counts = _u_counts(n, m)
        low = int(min(u, n * m - u))
        return min(1.0, 2 * float(counts[: low + 1].sum() / counts.sum()))
    total = n + m
    variance = n * m / 12 * (total + 1 - float((ties**3 - ties).sum()) / (total * (total - 1)))
    if variance == 0:
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def _ranks(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranks from 1, equal values sharing their mean, and the sizes of the groups of equal values."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[group], counts[counts > 1].astype(np.float64)


def _u_counts(n: int, m: int) -> np.ndarray:
    """In how many of the orders of n and m values U is 0, 1, ... n m: the coefficients of the Gaussian binomial."""
    counts = np.zeros(n * m + 1)
    counts[0] = 1.0
    for i in range(1, n + 1):
        counts[m + i :] = counts[m + i :] - counts[: max(0, counts.size - m - i)]
        for first in range(i):
            counts[first::i] = np.cumsum(counts[first::i])
    return counts
