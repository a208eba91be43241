"""Predictions, simulations and plans as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .files import naming
from .model_tables import PAST, term_name
from .outcome import GPU_TERMS, UPDATE_TERMS, Distribution, Outcome
from .plan import ADMISSIBLE, MEMORY, Plan

BARS = 60  # of a histogram, at most
MANY = 64  # cells along an axis up to which each admissible one is marked with a dot, not the whole by its outline


def plot_plan(plan: Plan, path: Path) -> None:
    """Heat maps of T_Epoch and of the mean mini-batch over nodes x sub-batch, the admissible cells marked.

    Source: Oyama et al. 2016, planner use case.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5), layout="constrained")
    axes = figure.subplots(1, 2)
    times, unit = _scaled_time(plan.t_epoch)
    low, high = plan.limits.batch_range
    wanted = f", wanted {low:.0f} to {high:.0f}" if plan.limits.batch else ""
    _heat_map(figure, axes[0], plan, times, ("T_Epoch", unit), "viridis_r")
    _heat_map(figure, axes[1], plan, plan.minibatch, (f"mean mini-batch{wanted}", "samples"), "cividis")
    figure.suptitle(f"{plan.network} on {plan.machine}, {plan.devices} devices a node", fontsize=13)
    figure.legend(handles=_legend(plan), loc="outside lower center", ncols=4, frameon=False)
    with naming(path):
        figure.savefig(path, dpi=120)


def _scaled_time(seconds: np.ndarray) -> tuple[np.ndarray, str]:
    middle = float(np.median(seconds))
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if middle >= size:
            return seconds / size, unit
    return seconds, "seconds"


def _heat_map(figure: Any, axis: Any, plan: Plan, values: np.ndarray, title: tuple[str, str],
              colours: str) -> None:
    """title: what is drawn and its unit; colours: a colour map, whose scale is logarithmic."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator, NullLocator

    edges = [_edges(line) for line in (plan.nodes, plan.subbatches)]
    mesh = axis.pcolormesh(*edges, values.T, cmap=colours, norm=LogNorm())
    bar = figure.colorbar(mesh, ax=axis, label=title[1], ticks=LogLocator(subs=(1, 2, 5)), format="{x:g}")
    bar.ax.yaxis.set_minor_locator(NullLocator())
    for column in np.flatnonzero((plan.verdict == MEMORY).all(axis=0)):  # memory does not depend on the nodes
        axis.axhspan(*edges[1][column:column + 2], facecolor="none", edgecolor="black", hatch="xx", lw=0)
    _mark(axis, plan)
    axis.set(xlabel="nodes", ylabel="sub-batch (samples)", title=title[0])
    for side in (axis.xaxis, axis.yaxis):
        side.get_major_locator().set_params(integer=True, min_n_ticks=1)


def _edges(line: np.ndarray) -> np.ndarray:
    """Borders of cells around the values of an axis."""
    if len(line) == 1:
        return np.array([line[0] - 0.5, line[0] + 0.5])
    middle = (line[1:] + line[:-1]) / 2
    return np.concatenate(([2 * line[0] - middle[0]], middle, [2 * line[-1] - middle[-1]]))


def _mark(axis: Any, plan: Plan) -> None:
    admissible = plan.verdict == ADMISSIBLE
    rows, columns = np.nonzero(admissible)
    if _outlined(plan):
        axis.contour(plan.nodes, plan.subbatches, admissible.T, levels=[0.5], colors="white", linewidths=2)
    else:
        axis.scatter(plan.nodes[rows], plan.subbatches[columns], s=30, c="white", edgecolors="black", lw=0.6)
    if len(rows):
        row, column = plan.ranked()[0]
        axis.scatter(plan.nodes[row], plan.subbatches[column], s=190, c="red", marker="*", edgecolors="white")


def _outlined(plan: Plan) -> bool:
    """Whether there are too many cells to mark each."""
    return max(plan.verdict.shape) > MANY and min(plan.verdict.shape) > 1


def _legend(plan: Plan) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    if np.any(plan.verdict == ADMISSIBLE):
        dot = Line2D([], [], ls="", marker="o", mfc="white", mec="black", label="admissible")
        outline = Patch(fc="lightgrey", label="admissible, inside the white line")
        handles = [outline if _outlined(plan) else dot,
                   Line2D([], [], ls="", marker="*", ms=13, mfc="red", mec="white", label="shortest epoch")]
    if np.any(plan.verdict == MEMORY):
        handles.append(Patch(fc="white", ec="black", hatch="xx", label="too large for the device's memory"))
    return handles


def plot_outcomes(outcomes: list[Outcome], path: Path) -> None:
    """The terms of both loops and the distributions of mini-batch and staleness, outcomes side by side."""
    from matplotlib.figure import Figure

    first = outcomes[0]
    figure = Figure(figsize=(13, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    _term_bars(axes[0, 0], outcomes, "gpu", GPU_TERMS)
    _term_bars(axes[0, 1], outcomes, "update", UPDATE_TERMS)
    for axis, name, unit in ((axes[1, 0], "minibatch", "samples of an update"),
                             (axes[1, 1], "staleness", "updates between fetch and use")):
        _histograms(axis, [getattr(outcome, name) for outcome in outcomes], outcomes)
        axis.set(xlabel=unit, ylabel="probability", title={"minibatch": "mini-batch"}.get(name, name))
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    config = first.config
    figure.suptitle(f"{first.network} on {first.machine}: {config.nodes} nodes x {config.devices} devices, "
                    f"sub-batch {config.subbatch}", fontsize=13)
    with naming(path):
        figure.savefig(path, dpi=120)


def _term_bars(axis: Any, outcomes: list[Outcome], loop: str, names: tuple[str, ...]) -> None:
    places, height = np.arange(len(names)), 0.8 / len(outcomes)
    for number, outcome in enumerate(outcomes):
        values = [1e3 * getattr(outcome, f"{loop}_terms")[name] for name in names]
        bars = axis.barh(places + number * height, values, height, label=PAST[outcome.method])
        axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axis.set_yticks(places + height * (len(outcomes) - 1) / 2, [term_name(loop, name) for name in names])
    axis.invert_yaxis()
    axis.margins(x=0.12)
    total = getattr(outcomes[0], f"t_{loop}")
    axis.set(xlabel="ms", title=f"{'GPU' if loop == 'gpu' else 'update'} thread, {1e3 * total:.4g} ms a turn")
    if len(outcomes) > 1:
        axis.legend()


def _histograms(axis: Any, distributions: list[Distribution], outcomes: list[Outcome]) -> None:
    """Side by side over common bins, each marked with its mean."""
    low = min(d.quantile(1e-4) for d in distributions)
    high = max(d.quantile(1 - 1e-4) for d in distributions)
    step = min(int(np.min(np.diff(d.values))) if len(d.values) > 1 else 1 for d in distributions)
    step *= max(1, -(-(high - low) // (BARS * step)))
    edges = np.arange(low - step / 2, high + step, step)
    places = (edges[:-1] + edges[1:]) / 2
    for number, (distribution, outcome) in enumerate(zip(distributions, outcomes, strict=True)):
        mass, _ = np.histogram(distribution.values, edges, weights=distribution.probabilities)
        width = 0.8 * step / len(outcomes)
        label = f"{PAST[outcome.method]}, mean {distribution.mean:.4g}"
        axis.bar(places + (number - (len(outcomes) - 1) / 2) * width, mass, width, label=label, color=f"C{number}")
        axis.axvline(distribution.mean, color=f"C{number}", ls="--", lw=1)
    axis.legend()
