from __future__ import annotations

import json

import drill
import numpy as np
import pytest
from sprint.distributed.ranks import RankFailed, Single
from sprint.distributed.recovery import recover


class Living(Single):
    """What one survivor sees: scripted versions of the others, and a broadcast that may fail first."""

    def __init__(self, rank, versions, failures=0, newest=None):
        super().__init__()
        self.size, self.ids, self.hosts, self.rank = 4, [0, 1, 2, 3], ["a", "b", "c", "d"], rank
        self._versions, self._failures, self._newest = versions, failures, newest
        self.announced = []

    def shrink(self, announce=True):
        self.announced.append(announce)
        self.ids, self.size = [0, 2, 3], 3
        self.hosts = ["a", "c", "d"]

    def gather_all(self, values):
        return np.array([[v, 2.0] for v in self._versions])

    def broadcast(self, array, root):
        self.root = root
        if self._failures:
            self._failures -= 1
            raise RankFailed("broadcast")
        if self.rank == root:
            self._newest = array.copy()
        array[:] = self._newest


def buffers():
    return np.array([5.0, 5.0], np.float32), np.array([-1.0, -1.0], np.float32)


def test_nobody_ahead_means_the_update_is_made_again():
    comm, (latest, recv) = Living(1, [7, 7, 7]), buffers()
    result = recover(comm, 7, latest, recv, 2)
    assert not result.adopted and result.first == 8 and result.dead == ["rank 1 (host b)"]
    assert (result.share, result.shares) == (2, 6)
    assert recv.tolist() == [-1, -1] and not hasattr(comm, "root")


def test_the_one_behind_takes_the_update_that_another_has_published():
    latest, recv = buffers()
    comm = Living(0, [7, 8, 8], newest=np.array([6.0, 6.5], np.float32))
    result = recover(comm, 7, latest, recv, 2)
    assert result.adopted and comm.root == 1 and recv.tolist() == [6.0, 6.5] and latest.tolist() == [5, 5]
    assert result.first == 9


def test_the_one_ahead_gives_its_latest_and_keeps_it():
    latest, recv = buffers()
    comm = Living(1, [7, 8, 8])
    result = recover(comm, 8, latest, recv, 2)
    assert not result.adopted and result.first == 9 and latest.tolist() == [5, 5]


def test_another_ahead_too_does_not_lose_its_own_latest():
    latest, recv = buffers()
    comm = Living(2, [7, 8, 8], newest=np.array([5.0, 5.0], np.float32))
    assert not recover(comm, 8, latest, recv, 2).adopted and latest.tolist() == [5, 5]


def test_a_death_meanwhile_starts_it_over_and_tells_the_others():
    comm, (latest, recv) = Living(1, [7, 8, 8], failures=2), buffers()
    recover(comm, 8, latest, recv, 2, announce=False)
    assert comm.announced == [False, True, True]


def test_an_error_without_a_death_is_no_recovery():
    class Whole(Living):
        def shrink(self, announce=True):
            pass

    with pytest.raises(RuntimeError, match=r"expected a dead rank among rank 0 \(host a\), .*, got none"):
        recover(Whole(0, [7, 7, 7, 7]), 7, *buffers(), 2)


def test_versions_that_cannot_be_are_an_error():
    with pytest.raises(RuntimeError, match="expected versions 8 or 9, got"):
        recover(Living(0, [7, 9, 9]), 7, *buffers(), 2)


@pytest.mark.parametrize("victim", [0, 2])
def test_kill_drill_is_survived_and_said(mpirun, tmp_path, victim):
    done = mpirun(3, "job.py", "--out", tmp_path, "--samples", 1500, "--delay", 0.002, "--inject",
                  f"kill-rank={victim}@update=50", ft=True)
    assert done.code == 0, done.err
    assert f"sprint: rank {victim} (host " in done.err and "died; 2 ranks go on with update 50" in done.err
    living = [rank for rank in range(3) if rank != victim]
    assert drill.check_count(tmp_path, living, 1) == ""
    results = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in living]
    assert [r["divisions"] for r in results] == [[[[i, 2, r["divisions"][0][0][2]]]] for i, r in enumerate(results)]


def test_the_last_rank_goes_on_alone(mpirun, tmp_path):
    done = mpirun(2, "job.py", "--out", tmp_path, "--samples", 900, "--delay", 0.002, "--inject",
                  "kill-rank=0@update=30", ft=True)
    assert done.code == 0, done.err
    assert "died; 1 rank goes on with update 30" in done.err and drill.check_count(tmp_path, [1], 1) == ""


def test_a_death_between_segments_is_survived(mpirun, tmp_path):
    done = mpirun(3, "job.py", "--out", tmp_path, "--samples", 300, "--delay", 0.002, "--die-between", 1, ft=True)
    assert done.code == 0, done.err
    assert "sprint: rank 1 (host " in done.err and drill.check_count(tmp_path, [0, 2], 1) == ""
    assert json.loads((tmp_path / "rank0.json").read_text())["samples"] >= 600


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_kill_9_at_a_random_moment(tmp_path, mpirun, seed):
    outcome, seconds = drill.drill(tmp_path, seed)
    assert outcome in ("survived", "late") and seconds < 20
