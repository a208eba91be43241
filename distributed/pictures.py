"""Pictures of what a run measured: the distributions of staleness and mini-batch."""

from __future__ import annotations

import io

import numpy as np

from .telemetry import Histogram

BARS = 40  # at most; wider bins where there are more values


def staleness(histogram: Histogram, title: str) -> bytes:
    """A PNG of how late gradients were, in updates."""
    return _bars(histogram, title, "staleness of a gradient [updates]", "gradients [%]", "tab:purple")


def minibatch(histogram: Histogram, title: str) -> bytes:
    """A PNG of how many samples the updates had."""
    return _bars(histogram, title, "mini-batch of an update [samples]", "updates [%]", "tab:green")


def _bars(histogram: Histogram, title: str, x_label: str, y_label: str, colour: str) -> bytes:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    starts, width, counts = binned(histogram)
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    centre = (width - 1) / 2  # of the whole numbers in a bin
    axes.bar(starts + centre, 100 * counts / max(1, histogram.total), 0.9 * width, color=colour)
    axes.axvline(histogram.mean, color="black", linewidth=1, linestyle="--",
                 label=f"mean {histogram.mean:.2f}, largest {histogram.largest}, {histogram.total} counted")
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(top=1.15 * axes.get_ylim()[1])  # room for the legend
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper right")
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def binned(histogram: Histogram) -> tuple[np.ndarray, int, np.ndarray]:
    """First value of each bin, values in a bin, and counts, from the first to the last bin that is not empty."""
    used = np.flatnonzero(histogram.counts)
    if not used.size:
        return np.zeros(1), 1, np.zeros(1)
    counts = histogram.counts[used[0]:used[-1] + 1]
    merge = -(-counts.size // BARS)
    counts = np.pad(counts, (0, -counts.size % merge)).reshape(-1, merge).sum(axis=1)
    width = merge * histogram.width
    return used[0] * histogram.width + width * np.arange(counts.size), width, counts
