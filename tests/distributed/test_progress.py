from __future__ import annotations

import math

import numpy as np
import pytest
from sprint.distributed.buffers import TAIL, Deposit
from sprint.distributed.progress import Progress, complete, pack
from sprint.distributed.ranks import AgreedError


def summed(parts):
    """Sum the tails of several ranks in float32, as the Allreduce does."""
    total = np.zeros(TAIL, np.float32)
    for part in parts:
        tail = np.full(TAIL, np.nan, np.float32)
        pack(tail, **part)
        total += tail
    return total


def rank(deposits=(), version=1, stop=0, failed_id=-1, digest=None):
    return {"deposits": list(deposits), "version": version, "stop_signal": stop, "failed_id": failed_id,
            "digest": digest}


def gradient(samples, loss, version=0, update=1):
    return Deposit(0, version, update, samples, loss)


def test_all_counts_are_over_all_ranks():
    start = Progress(version=4, samples=100, gradients=9, staleness_sum=3)
    two, one = [gradient(5, 10.0, 4, 5), gradient(3, 2.0, 2, 5)], [gradient(1, 0.0, 3, 5)]
    tail = summed([rank(two, 5), rank([], 5), rank(one, 5)])
    after = start.after(tail, check=False)
    assert (after.version, after.samples, after.minibatch, after.gradients) == (5, 109, 9, 12)
    assert after.staleness_sum == 3 + 0 + 2 + 1 and after.staleness == 0.5
    assert after.loss == pytest.approx(12 / 9) and after.stop_signal == 0 and after.failed_rank == -1


def test_an_update_without_samples_keeps_the_loss():
    first = Progress().after(summed([rank([gradient(2, 3.0)])]), False)
    second = first.after(summed([rank([], 2)]), False)
    assert second.loss == first.loss == 1.5 and second.minibatch == 0 and second.diverged(10) == ""


def test_votes_name_the_rank_that_failed():
    after = Progress().after(summed([rank(stop=2), rank(stop=2), rank(failed_id=2)]), False)
    assert (after.stop_signal, after.failed_rank) == (2, 2)
    assert Progress().after(summed([rank(stop=15), rank(stop=2)]), False).stop_signal == 15
    assert Progress().after(summed([rank(failed_id=0), rank(failed_id=0)]), False).failed_rank < -1


def test_a_result_without_all_ranks_at_this_update_is_incomplete():
    assert complete(summed([rank(version=8)] * 3), 8, 3)
    assert complete(summed([rank(version=4096)] * 3), 4096, 3)
    assert not complete(summed([rank(version=8), rank(version=9)]), 8, 2)
    assert not complete(summed([rank(version=8)] * 2), 8, 3)
    assert not complete(summed([rank(version=6)] * 3), 8, 3)  # a collective that wrote nothing: the update before last


@pytest.mark.parametrize("digests", [[1, 2], [0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFE], [1, 2, 3], [0x10000000, 0]])
def test_different_weights_are_found_whoever_is_different(digests):
    with pytest.raises(AgreedError, match="equal weights"):
        Progress().after(summed([rank(digest=d) for d in digests]), True)


@pytest.mark.parametrize("ranks", [1, 3, 513])
def test_equal_weights_pass(ranks):
    assert Progress().after(summed([rank(digest=0xFEDCBA98)] * ranks), True).version == 1


def test_divergence_is_a_loss_that_is_not_finite_or_far_above_its_start():
    at = Progress()
    for version in range(1, 8):
        at = at.after(summed([rank([gradient(2, 4.0)], version)]), False)
    assert at.start_loss == pytest.approx(2.0) and at.diverged(10) == ""
    spike = at.after(summed([rank([gradient(2, 100.0)], 8)]), False)
    assert spike.diverged(10) == ""  # one bad mini-batch is no divergence: smooth loss 6.8
    assert "above 3 times" in spike.diverged(3) and spike.diverged(0.0) == ""
    broken = at.after(summed([rank([gradient(2, math.inf)], 8)]), False)
    assert "inf" in broken.diverged(10) and "inf" in broken.diverged(0.0)
