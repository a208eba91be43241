from __future__ import annotations

import json

import numpy as np
import pytest
from sprint.distributed.buffers import Deposit
from sprint.distributed.ranks import Single
from sprint.distributed.telemetry import UPDATE_TERMS, Clock, Histogram, Telemetry, whole_job


def test_histogram_widens_and_keeps_the_count_and_the_exact_mean():
    histogram = Histogram(bins=4)
    for value in (0, 3, 3, 9, 1):
        histogram.add(value)
    assert histogram.width == 4 and histogram.counts.tolist() == [4, 0, 1, 0]
    assert histogram.mean == pytest.approx(16 / 5) and histogram.largest == 9
    assert json.loads(json.dumps(histogram.as_dict()))["counts"] == [4, 0, 1]


def test_histograms_of_all_ranks_are_added_at_the_widest_width():
    mine, other = Histogram(bins=4), Histogram(bins=4)
    for value in (0, 1, 2):
        mine.add(value)
    other.add(7)

    class Two(Single):
        def gather_all(self, values):
            self.calls = getattr(self, "calls", 0) + 1
            head = [other.width, other.total, other.sum, other.largest]
            return np.array([values, head if self.calls == 1 else other.counts.tolist()])

    job = whole_job(mine, Two())
    assert job.width == 2 and job.counts.tolist() == [2, 1, 0, 1]
    assert (job.total, job.largest) == (4, 7) and job.mean == pytest.approx(2.5)


def test_a_clock_gives_every_moment_to_one_term():
    clock = Clock(UPDATE_TERMS, recent=3)
    for _ in range(5):
        clock.restart()
        clock.lap("barrier")
        clock.lap("allreduce")
        clock.move("allreduce", "wait", 1e9)  # never more than there is
        clock.finish()
    assert clock.iterations == 5 and clock.recent.shape == (3, len(UPDATE_TERMS))
    row = dict(zip(UPDATE_TERMS, clock.recent[-1], strict=True))
    assert row["allreduce"] == 0.0 and row["wait"] > 0.0 and row["sum_gradient"] == 0.0


def test_arrows_keep_the_last_and_their_order():
    telemetry = Telemetry(workers=1, arrows=4)
    for update in range(1, 7):
        version = max(update - 2, 0)
        telemetry.used([Deposit(0, version, update, 3, 1.0, read_s=update, deposit_s=update + 0.5)], 3)
    arrows = telemetry.arrows
    assert arrows["update"].tolist() == [3, 4, 5, 6] and arrows["version"].tolist() == [1, 2, 3, 4]
    assert (arrows["publish_s"] < arrows["deposit_s"]).all() and arrows["staleness"].tolist() == [1] * 4
    assert telemetry.minibatch.mean == 3.0
    assert json.loads(json.dumps(telemetry.as_dict()))["staleness"]["counts"] == [1, 5]
