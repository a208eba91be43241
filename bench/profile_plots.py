"""The pictures of a profile: stacked bars a layer, and a roofline with every kernel on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .ceilings import Ceilings
from .files import write
from .profile import PARTS, Profile, Row

OTHER = "host overhead"
NAMED = 6  # kernels of the roofline that get a label: the slowest


def draw(path: Path, profile: Profile, ceilings: Ceilings, title: str) -> None:
    """Write both pictures into one PNG. Raises OSError naming `path`."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (bars, roofline) = pyplot.subplots(1, 2, figsize=(15, 6.5), layout="constrained")
    figure.suptitle(title)
    _bars(bars, profile)
    _roofline(roofline, profile, ceilings)
    image = io.BytesIO()
    figure.savefig(image, dpi=110, format="png")
    pyplot.close(figure)
    write(path, image.getvalue())


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
    axes.legend(fontsize=8, loc="best")
    axes.grid(axis="x", alpha=0.3)


def _roofline(axes: Any, profile: Profile, ceilings: Ceilings) -> None:
    """GFLOP/s over flops a byte, on the roof of copy bandwidth and sgemm peak; areas show time."""
    rows = [row for row in profile.rows if row.flops and row.bytes_moved]
    colours = _colours()
    peak, slope = ceilings.sgemm_gflop_per_s, ceilings.copy_gb_per_s
    x = np.logspace(-2, 3.5, 200)
    axes.loglog(x, np.minimum(x * slope, peak), color="black", linewidth=1.5)
    for part in dict.fromkeys(row.part for row in rows):
        some = [row for row in rows if row.part == part]
        axes.scatter([r.intensity for r in some], [r.gflop_per_s for r in some], label=part, alpha=0.75,
                     s=[20 + 600 * r.share for r in some], color=colours.get(part, "grey"))
    for number, row in enumerate(sorted(rows, key=lambda row: -row.ms.median)[:NAMED]):
        _label(axes, row, number)
    axes.set_xlabel("flops a byte")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"roof: copy {slope:.1f} GB/s, sgemm {peak:.0f} GFLOP/s (Winograd may pass it)", fontsize=10)
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(which="both", alpha=0.2)


def _label(axes: Any, row: Row, number: int) -> None:
    """Labels stand in a column of their own, with a line to the point, so that they never overlap."""
    axes.annotate(f"{row.layer} {row.direction} {row.kernel}", (row.intensity, row.gflop_per_s),
                  xytext=(0.03, 0.96 - 0.05 * number), textcoords="axes fraction", fontsize=7.5,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
                  arrowprops={"arrowstyle": "-", "linewidth": 0.5, "alpha": 0.5})


def _colours() -> dict[str, Any]:
    from matplotlib import colormaps

    return {part: colormaps["tab20"](i % 20) for i, part in enumerate(PARTS)}
