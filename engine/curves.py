"""The picture of a run: the losses, and the accuracies in percent, as it went on."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]
MARKED = 40  # records up to which each is a point
LOG_SPAN = 5.0  # largest loss over smallest from which the axis is logarithmic: it has two ticks or more
LEAST_SPAN = 10.0  # percent that the axis of accuracies shows at least


def curves(records: Sequence[Record], title: str) -> bytes:
    """A PNG of 1200 x 480 pixels. records: of metrics.jsonl, at least one."""
    image = io.BytesIO()
    figure(records, title).savefig(image, format="png")
    return image.getvalue()


def figure(records: Sequence[Record], title: str) -> Any:
    """The matplotlib figure, over the epochs, or over the steps of a run that has not seen one."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    unit = "epoch" if records[-1]["epoch"] >= 1 else "step"
    tested = [r for r in records if None not in (r.get(name) for name in ("test_loss", "top1", "top5"))]
    drawn = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    drawn.suptitle(title)
    loss, accuracy = drawn.subplots(1, 2)
    _losses(loss, records, tested, unit)
    _accuracies(accuracy, tested, unit)
    for axes, label in ((loss, "loss"), (accuracy, "test accuracy [%]")):
        axes.set(xlabel=unit, ylabel=label, xlim=(0, records[-1][unit] * 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=(1, 2, 5, 10), integer=unit == "step"))
        axes.grid(alpha=0.3)
        axes.legend()
    return drawn


def _losses(axes: Any, records: Sequence[Record], tested: Sequence[Record], unit: str) -> None:
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    axes.plot([r[unit] for r in records], [r["loss"] for r in records], "." * (len(records) <= MARKED) + "-",
              color="tab:blue", label="training")
    axes.plot([r[unit] for r in tested], [r["test_loss"] for r in tested], "o-", color="tab:orange", label="test")
    seen = [r["loss"] for r in records] + [r["test_loss"] for r in tested]
    if min(seen) > 0 and max(seen) >= LOG_SPAN * min(seen):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _accuracies(axes: Any, tested: Sequence[Record], unit: str) -> None:
    for key, label, colour in (("top5", "top-5", "tab:gray"), ("top1", "top-1", "tab:green")):
        label += f": {100 * tested[-1][key]:.2f}%" if tested else ": not tested yet"
        axes.plot([r[unit] for r in tested], [100 * r[key] for r in tested], "o-", color=colour, label=label)
    seen = [100 * r[key] for r in tested for key in ("top1", "top5")] or [0.0, 100.0]
    span = max(LEAST_SPAN, max(seen) - min(seen))
    low = max(0.0, min((max(seen) + min(seen) - span) / 2, 100 - span))
    axes.set_ylim(low - 0.05 * span, low + 1.05 * span)
