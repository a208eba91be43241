"""The real loops on 2 and 4 ranks under mpirun."""

from __future__ import annotations

import json

import numpy as np
import pytest
from analytic import problem


def results(folder, ranks):
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in ranks]
    finals = [np.load(folder / f"final-rank{rank}.npz") for rank in ranks]
    return found, [f["weights"] for f in finals], [f["momentum"] for f in finals]


@pytest.mark.parametrize("ranks, workers", [(2, 2), (4, 1)])
def test_weights_count_every_sample_of_every_rank_once(mpirun, tmp_path, ranks, workers):
    done = mpirun(ranks, "job.py", "--out", tmp_path, "--workers", workers, "--samples", 3000, "--delay", 0.001)
    assert done.code == 0, done.err
    found, weights, _ = results(tmp_path, range(ranks))
    for mine, w in zip(found, weights, strict=True):
        assert w.tobytes() == weights[0].tobytes() and mine["version"] == found[0]["version"]
        assert w[0] == mine["samples"] >= 3000 and w[1:1 + ranks * workers].sum() == w[0]
    for rank, mine in enumerate(found):
        assert 3 * mine["own"] == weights[0][1 + rank * workers:1 + (rank + 1) * workers].sum()
    assert sum(f["own"] for f in found) == found[0]["gradients"]


@pytest.mark.smoke
def test_sync_on_one_two_and_four_ranks_is_equal(mpirun, tmp_path):
    finals = []
    for ranks, sizes in ((1, "32"), (2, "16,16"), (4, "5,9,8,10")):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        done = mpirun(ranks, "job.py", "--out", folder, "--kind", "regression", "--algorithm", "sync", "--sizes", sizes,
                      "--samples", 320, "--rate", 0.1, "--form", "mean", "--momentum", 0.9)
        assert done.code == 0, done.err
        found, weights, _ = results(folder, range(ranks))
        assert found[0]["version"] == 10 and found[0]["samples"] == 320
        finals.append(weights[0])
    for other in finals[1:]:
        scale = np.abs(finals[0]).max()
        assert np.abs(other - finals[0]).max() <= 1e-5 * scale


def test_two_ranks_converge_asynchronously_with_momentum(mpirun, tmp_path):
    done = mpirun(2, "job.py", "--out", tmp_path, "--kind", "regression", "--workers", 2, "--samples", 30000, "--delay",
                  0.001, "--rate", 0.03, "--form", "mean", "--momentum", 0.5)
    assert done.code == 0, done.err
    found, weights, _ = results(tmp_path, range(2))
    np.testing.assert_allclose(weights[0], problem()[2], atol=5e-3)
    assert found[0]["staleness"] == found[1]["staleness"] and found[0]["arrows"] > 100


def test_a_rank_without_data_takes_part(mpirun, tmp_path):
    done = mpirun(2, "job.py", "--out", tmp_path, "--no-data-on", 1, "--samples", 300, "--delay", 0.001)
    assert done.code == 0, done.err
    found, weights, _ = results(tmp_path, range(2))
    assert weights[1][0] == found[1]["samples"] == weights[1][1] and weights[1][2] == 0 and found[1]["own"] == 0


@pytest.mark.parametrize("what, name", [("1:bbbbbbbbbbbb", "configuration"), ("params:,0:aaaaaaaaaaaa", "parameters")])
def test_different_configurations_are_refused(mpirun, tmp_path, what, name):
    done = mpirun(2, "job.py", "--out", tmp_path, "--hash-of-rank", what)
    assert done.code == 1 and done.seconds < 10
    assert f"sprint: start: expected the same {name} on all ranks, got" in done.err
    assert "Traceback" not in done.err and "on rank 1" in done.err and done.err.count("sprint: ") == 1
