"""The picture of a run is readable however short the run was."""

from __future__ import annotations

import pytest
from sprint.engine.curves import figure


def record(step, epoch, loss, top1=None):
    tested = {} if top1 is None else {"test_loss": loss, "top1": top1, "top5": top1}
    return {"step": step, "epoch": epoch, "loss": loss, **tested}


def ticks(axis, limits):
    """Texts of the ticks that are seen."""
    axis.axes.figure.canvas.draw()
    return [label.get_text() for label in axis.get_ticklabels() if limits[0] <= label.get_position()[0] <= limits[1]]


@pytest.mark.parametrize(("epoch", "top1"), [(0.0, 0.0), (0.000125, 0.001), (0.5, 1.0), (0.99, None)])
def test_a_run_of_one_step(epoch, top1):
    loss, accuracy = figure([record(1, epoch, 6.9, top1)], "cnn-a").axes
    for axes in (loss, accuracy):
        assert axes.get_xlabel() == "step" and ticks(axes.xaxis, axes.get_xlim()) == ["0", "1"]
    low, high = accuracy.get_ylim()
    assert high - low >= 10 and -10 <= low < high <= 110
    assert loss.get_yscale() == "linear" and loss.lines[0].get_marker() == "."  # a line of one point is not seen


def test_a_longer_run_is_drawn_over_its_epochs_and_all_accuracies_are_seen():
    records = [record(s, s / 10, 2.3 / s, s / 21 if s % 10 == 0 else None) for s in range(1, 21)]
    loss, accuracy = figure(records, "cnn-a").axes
    assert (loss.get_xlabel(), loss.get_yscale(), loss.get_xlim()) == ("epoch", "log", (0, 2.04))
    assert accuracy.get_ylim()[0] < 100 * 10 / 21 < 100 * 20 / 21 < accuracy.get_ylim()[1] <= 105
    assert len(accuracy.lines[0].get_xdata()) == 2
    many = figure([record(s, s / 10, 2.3) for s in range(1, 100)], "cnn-a").axes[0]
    assert many.get_yscale() == "linear" and many.lines[0].get_marker() == "None"
