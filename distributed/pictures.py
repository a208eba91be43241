"""Pictures of what a run measured: the distributions of staleness and mini-batch, and the terms of both loops."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from .telemetry import Histogram

BARS = 40  # at most; bins where there are more values


def staleness(histogram: Histogram, title: str) -> bytes:
    """A PNG of how late gradients were, in updates."""
    return _bars(histogram, title, "staleness of a gradient [updates]", "gradients [%]", "tab:purple")


def minibatch(histogram: Histogram, title: str) -> bytes:
    """A PNG of how many samples the updates had."""
    return _bars(histogram, title, "mini-batch of an update [samples]", "updates [%]", "tab:green")


def _bars(histogram: Histogram, title: str, x_label: str, y_label: str, colour: str) -> bytes:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    places, width, counts = bars(histogram)
    percents = 100 * counts / max(1, histogram.total)
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.bar(places, percents, width, color=colour)
    axes.axvline(histogram.mean, color="black", linewidth=1, linestyle="--",
                 label=f"mean {histogram.mean:.2f}, largest {histogram.largest}, {histogram.total} counted")
    margin = max(1.0, 0.05 * (places[-1] - places[0]))
    axes.set(title=title, xlabel=x_label, ylabel=y_label, xlim=(places[0] - margin, places[-1] + margin),
             ylim=(0, 1.15 * (percents.max() or 100)))  # with room for the legend
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper right")
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def loops(threads: dict[str, Any], title: str) -> bytes:
    """A PNG of the loops of one rank: a bar a thread, stacked by the means of its terms (profiling.terms_of)."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    terms = list(dict.fromkeys(term for loop in threads.values() for term in loop["terms"]))
    figure = Figure(figsize=(9, 2.2 + 0.45 * len(threads)), dpi=120, layout="constrained")
    axes = figure.subplots()
    base = np.zeros(len(threads))
    for number, term in enumerate(terms):
        widths = np.array([loop["terms"].get(term, {"mean": 0.0})["mean"] for loop in threads.values()])
        axes.barh(list(threads), widths, left=base, color=colormaps["tab20"](number % 20), label=term)
        base += widths
    axes.invert_yaxis()
    axes.set(title=title, xlabel="ms an iteration (means of the terms)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def bars(histogram: Histogram) -> tuple[np.ndarray, float, np.ndarray]:
    """Middles of the bars, their width, and their counts: one for each value, or for each bin where they are many."""
    used = np.flatnonzero(histogram.counts)
    if not used.size:
        return np.zeros(1), 1.0, np.zeros(1)
    if used.size <= BARS:
        places = _middles(used, histogram.width)
        room = max(histogram.width, (places[-1] - places[0]) / BARS)
        return places, 0.9 * min([room, *np.diff(places)]), histogram.counts[used]
    counts = histogram.counts[used[0]:used[-1] + 1]
    merge = -(-counts.size // BARS)
    counts = np.pad(counts, (0, -counts.size % merge)).reshape(-1, merge).sum(axis=1)
    width = merge * histogram.width
    return used[0] * histogram.width + _middles(np.arange(counts.size), width), 0.9 * width, counts


def _middles(bins: np.ndarray, width: int) -> np.ndarray:
    """Of the whole numbers in each bin."""
    return bins * width + (width - 1) / 2
