from __future__ import annotations

import re

import numpy as np
import pytest
from analytic import Counting
from sprint.distributed.buffers import Deposit, GradientBuffer, VersionedWeights
from sprint.distributed.options import Options
from sprint.distributed.progress import Progress
from sprint.distributed.ranks import Single
from sprint.distributed.telemetry import UPDATE_TERMS, WORKER_TERMS, Clock, Telemetry
from sprint.distributed.update import Updater
from sprint.distributed.watch import Pulse


def updater(weights, form="sum", momentum=0.5, workers=2):
    buffers = [GradientBuffer(weights.n_params, 0) for _ in range(workers)]
    options = Options(rate=lambda samples, version: 1.0, momentum=momentum, form=form)
    return Updater(Single(), weights, buffers, options, Telemetry(workers), Progress()), buffers


def give(buffer, t, samples, version=0):
    worker = Counting(5, t, samples)
    buffer.deposit(worker, Deposit(t, version, 0, samples, 1.0), lambda late: -1.0, Clock(WORKER_TERMS))


@pytest.mark.parametrize("form", ["sum", "mean"])
def test_three_updates_by_hand(form):
    """W(t+1) = W + momentum * DeltaW - rate * gradient, also where nothing has arrived."""
    start = np.array([10.0, 20.0, 30.0, 0.0, -1.0], np.float32)
    weights = VersionedWeights(start)
    makes, buffers = updater(weights, form)
    w, delta = start.astype(np.float64), np.zeros(5)
    for samples in ([2, 6], [], [0, 3]):
        gradient = np.zeros(5)
        for t, count in enumerate(samples):
            if count:
                give(buffers[t], t, count, weights.published.version)
                gradient[[0, 1 + t]] += count
        if form == "mean" and sum(samples):
            gradient /= sum(samples)
        delta = 0.5 * delta + gradient
        w = w + delta
        used = makes.step(Pulse("update"))
        assert len(used) == sum(count > 0 for count in samples)
        np.testing.assert_allclose(weights.snapshot()[0], w, rtol=1e-6)
        np.testing.assert_allclose(weights.snapshot()[1], delta, rtol=1e-5, atol=1e-5)
    assert makes.progress.version == 3 and makes.progress.samples == 11 and makes.progress.gradients == 3


def test_every_term_of_the_model_is_timed():
    weights = VersionedWeights(np.zeros(200_000, np.float32))
    makes, buffers = updater(weights)
    clock = makes._telemetry.update_clock
    for _ in range(3):
        for t, buffer in enumerate(buffers):
            worker = Counting(200_000, t)
            entry = Deposit(t, weights.published.version, 0, 3, 1.0)
            buffer.deposit(worker, entry, lambda late: -1.0, Clock(WORKER_TERMS))
        clock.restart()
        makes.step(Pulse("update"))
        clock.finish()
    means = clock.mean_ms()
    assert set(means) == set(UPDATE_TERMS) and all(means[term] > 0 for term in UPDATE_TERMS if term != "wait")


def test_update_is_measured_against_its_own_adds_and_allreduce(mpirun):
    """The benchmark prints the ratio (1.3 is its limit on an idle machine); here only a gross change fails."""
    done = mpirun(2, "update_loop.py", 1_000_000, limit_s=60.0)
    assert done.code == 0, done.err
    ratios = [float(x) for x in re.findall(r"ratio (\d+\.\d+)", done.out)]
    assert len(ratios) == 2 and max(ratios) <= 4, done.out
