"""The pictures of a profile: stacked bars a layer, and a roofline with every kernel on it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from .ceilings import Ceilings
from .files import write
from .profile import PARTS, Profile, Row

OTHER = "host overhead"
NAMED = 6  # kernels of the roofline that get a label: those with the largest share of the step
GAP = 0.08  # of the axes' height, from one label to the next


def draw(path: Path, profile: Profile, ceilings: Ceilings, title: str) -> None:
    """Write both pictures into one PNG. Raises OSError naming `path`."""
    image = io.BytesIO()
    figure(profile, ceilings, title).savefig(image, format="png")
    write(path, image.getvalue())


def figure(profile: Profile, ceilings: Ceilings, title: str) -> Any:
    """The matplotlib figure: bars, roofline, and one legend for both below."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(16, 7), dpi=110, layout="constrained")
    drawn.suptitle(title)
    bars, roofline = drawn.subplots(1, 2)
    _bars(bars, profile)
    _roofline(roofline, profile, ceilings)
    drawn.legend(*bars.get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS) + 1, fontsize=9)
    return drawn


def _bars(axes: Any, profile: Profile) -> None:
    """One bar for each layer and pass, in the order of the step, stacked by part."""
    places = list(dict.fromkeys((row.layer, row.direction) for row in profile.rows))
    colours = _colours()
    at = np.arange(len(places))
    base = np.zeros(len(places))
    for part in dict.fromkeys(row.part for row in profile.rows):
        widths = np.array([sum(r.ms.median for r in profile.rows if (r.layer, r.direction, r.part) == (*place, part))
                           for place in places])
        axes.barh(at, widths, left=base, color=colours.get(part, "grey"), label=part)
        base += widths
    axes.barh(len(places), max(profile.host_ms, 0), color="black", label=OTHER)
    axes.set_yticks([*at, len(places)], [*(f"{layer} {direction}" for layer, direction in places), OTHER],
                    fontsize=max(5, 9 - len(places) // 16))
    axes.invert_yaxis()
    axes.set_xlabel("ms a step (median)")
    axes.set_title(f"{profile.step_ms:.1f} ms a step; unobserved {profile.untimed_ms.median:.1f} ms")
    axes.set_xlim(0, 1.05 * max(base.max(), profile.host_ms))
    axes.grid(axis="x", alpha=0.3)


def _roofline(axes: Any, profile: Profile, ceilings: Ceilings) -> None:
    """GFLOP/s over flops a byte, on the roof of copy bandwidth and sgemm peak; areas show time."""
    rows = [row for row in profile.rows if row.flops and row.bytes_moved]
    colours = _colours()
    peak, slope = ceilings.sgemm_gflop_per_s, ceilings.copy_gb_per_s
    x = np.geomspace(*_around([peak / slope, *(row.intensity for row in rows)]), 200)
    axes.loglog(x, np.minimum(x * slope, peak), color="black", linewidth=1.5)
    for part in dict.fromkeys(row.part for row in rows):
        some = [row for row in rows if row.part == part]
        axes.scatter([r.intensity for r in some], [r.gflop_per_s for r in some], alpha=0.75,
                     s=[20 + 600 * r.share for r in some], color=colours.get(part, "grey"))
    axes.set_xlim(x[0], x[-1])
    _label(axes, sorted(rows, key=lambda row: -row.ms.median)[:NAMED])
    axes.set_xlabel("flops a byte")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"roof: copy {slope:.1f} GB/s, sgemm {peak:.0f} GFLOP/s (Winograd may pass it); areas: time")
    axes.grid(alpha=0.3)


def _around(values: list[float]) -> tuple[float, float]:
    """Bounds of a logarithmic axis that shows all of them."""
    return min(values) / 2, 2 * max(values)


def _label(axes: Any, rows: list[Row]) -> None:
    """Name kernels in a column beside the axes, in the order of their heights, so that lines seldom cross."""
    axes.set_ylim(axes.get_ylim())  # as all points are there
    rows = sorted(rows, key=lambda row: -row.gflop_per_s)
    points = axes.transLimits.transform(axes.transScale.transform([(row.intensity, row.gflop_per_s) for row in rows]))
    for row, height in zip(rows, _apart(points[:, 1].tolist()), strict=True):
        axes.annotate(f"{row.layer} {row.direction}\n{row.kernel}  {row.share:.0%}", (row.intensity, row.gflop_per_s),
                      xytext=(1.03, height), textcoords="axes fraction", fontsize=8, va="center",
                      arrowprops={"arrowstyle": "-", "linewidth": 0.6, "alpha": 0.5, "relpos": (0, 0.5)})


def _apart(heights: list[float]) -> list[float]:
    """Descending shares of the axes' height, moved as little as keeps the labels there apart and within it."""
    placed: list[float] = []
    for height in heights:
        placed.append(min(height, placed[-1] - GAP if placed else 1 - GAP / 2))
    least = GAP / 2
    for at in reversed(range(len(placed))):
        placed[at] = max(placed[at], least)
        least = placed[at] + GAP
    return placed


def _colours() -> dict[str, Any]:
    from matplotlib import colormaps

    return {part: colormaps["tab20"](i % 20) for i, part in enumerate(PARTS)}
