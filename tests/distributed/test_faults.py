"""Faults under mpirun: every one ends all ranks in time with the cause first, or is survived."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

IN_TIME_S = 10.0


def began(folder, rank=0):
    deadline = time.monotonic() + 12
    while not (folder / f"began-rank{rank}").exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def pids(folder, ranks):
    return [int((folder / f"pid-rank{rank}").read_text()) for rank in range(ranks)]


def gone(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()[0] == "Z"
    return True


def all_gone(numbers):
    """Return whether all processes end soon: the launcher may leave just before them."""
    deadline = time.monotonic() + 3
    while not all(map(gone, numbers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return all(map(gone, numbers))


def checkpoint(folder, rank):
    saved = np.load(folder / f"checkpoint-rank{rank}.npz")
    return saved["weights"], int(saved["version"]), json.loads(str(saved["state"]))


def check_saved(folder, rank):
    """The saved weights are a published version: they count exactly the samples that its progress tells."""
    weights, version, state = checkpoint(folder, rank)
    assert version == state["progress"]["version"] > 0
    assert weights[0] == state["progress"]["samples"] == weights[1:].sum()


@pytest.mark.parametrize("ft", [False, True])
def test_a_worker_that_raises_ends_all_ranks_with_its_traceback_first(mpirun, tmp_path, ft):
    done = mpirun(3, "job.py", "--out", tmp_path, "--samples", 10**8, "--delay", 0.002, "--inject",
                  "raise-worker=1@update=20", ft=ft)
    assert done.code == 1 and done.seconds < IN_TIME_S
    assert done.err.startswith("sprint: rank 1 (host ") and done.err.count("Traceback") == 1
    assert done.err.index("injected: worker 0 raises") < done.err.index("a worker of rank 1 failed")
    assert all_gone(pids(tmp_path, 3))
    for rank in range(3):
        check_saved(tmp_path, rank)


@pytest.mark.parametrize("ft", [False, True])
def test_a_rank_that_takes_its_time_to_say_why_all_end_is_waited_for(mpirun, tmp_path, ft):
    """mpirun kills the others when one has ended with a code that is not 0."""
    done = mpirun(2, "job.py", "--out", tmp_path, "--samples", 10**8, "--delay", 0.002, "--inject",
                  "raise-worker=1@update=20", ft=ft, env={"SLOW_END_S": "1"})
    assert done.code == 1 and done.err.count("a worker of rank 1 failed") == 1


@pytest.mark.parametrize("ft", [False, True])
def test_a_worker_that_fails_after_the_last_vote_ends_all_ranks_alike(mpirun, tmp_path, ft):
    done = mpirun(2, "job.py", "--out", tmp_path, "--samples", 600, "--delay", 0.01, "--workers", 2,
                  "--late-on", 1, ft=ft)
    assert done.code == 1 and done.seconds < IN_TIME_S and "ended at version" not in done.out
    assert done.err.index("late failure") < done.err.index("a worker of rank 1 failed")
    assert done.err.count("Traceback") == 1 and "MPI_ABORT" not in done.err


def test_an_error_outside_the_loops_aborts_the_others(mpirun, tmp_path):
    done = mpirun(2, "job.py", "--out", tmp_path, "--samples", 10**8, "--delay", 0.002, "--save-every", 5,
                  "--raise-in-save", 1)
    assert done.code != 0 and done.seconds < IN_TIME_S
    assert done.err.startswith("sprint: rank 1 (host ") and "OSError: no space left" in done.err
    assert all_gone(pids(tmp_path, 2))


@pytest.mark.parametrize("ft", [False, True])
def test_a_rank_that_raises_before_mpi_ends_all(mpirun, tmp_path, ft):
    done = mpirun(2, "job.py", "--out", tmp_path, "--raise-before-mpi", 1, ft=ft)
    assert done.code == 1 and done.seconds < IN_TIME_S and "raised before MPI" in done.err


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_without_ulfm_ends_all_ranks_with_a_checkpoint(mpirun, tmp_path, victim):
    done = mpirun(2, "job.py", "--out", tmp_path, "--samples", 10**8, "--delay", 0.002, "--inject",
                  f"kill-rank={victim}@update=50")
    assert done.code != 0 and done.seconds < IN_TIME_S
    assert all_gone(pids(tmp_path, 2))
    check_saved(tmp_path, 1 - victim)
    assert checkpoint(tmp_path, 1 - victim)[1] == 49


def test_kill_9_without_ulfm_saves_a_large_network_too(mpirun, tmp_path):
    """160 MB, which mpirun's 0.25 s between SIGTERM and SIGKILL do not allow."""
    done = mpirun(2, "job.py", "--out", tmp_path, "--samples", 10**8, "--delay", 0.002, "--params", 20_000_000,
                  "--inject", "kill-rank=1@update=8", limit_s=40.0)
    assert done.code != 0 and all_gone(pids(tmp_path, 2))
    deadline = time.monotonic() + 10
    while not (tmp_path / "checkpoint-rank0.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    check_saved(tmp_path, 0)


def test_a_gradient_that_is_not_a_number_stops_all_ranks_before_it_is_published(mpirun, tmp_path):
    done = mpirun(2, "job.py", "--out", tmp_path, "--samples", 10**8, "--delay", 0.002, "--inject",
                  "nan-grad=1@update=30")
    assert done.code == 1 and done.seconds < IN_TIME_S
    assert "diverged: the weights would not be finite" in done.err and "staleness" in done.err
    assert "Traceback" not in done.err
    for rank in range(2):
        check_saved(tmp_path, rank)


def test_a_late_rank_delays_and_nothing_is_lost(mpirun, tmp_path):
    done = mpirun(2, "job.py", "--out", tmp_path, "--samples", 900, "--delay", 0.002, "--inject",
                  "delay-rank=1@update=20,seconds=1")
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "rank0.json").read_text())
    weights = np.load(tmp_path / "final-rank0.npz")["weights"]
    assert weights[0] == result["samples"] and result["telemetry"]["minibatch"]["largest"] > 50


def test_a_stall_is_named_on_its_own_rank(mpirun, tmp_path):
    done = mpirun(2, "job.py", "--out", tmp_path, "--samples", 10**8, "--delay", 0.002, "--stall", 1.5, "--inject",
                  "delay-rank=1@update=20,seconds=60")
    assert done.code == 1 and done.seconds < IN_TIME_S
    assert done.err.startswith("sprint: stalled: rank 1 (host ") and "Traceback" not in done.err
    assert "thread update: collect gradients, update 20, for 1." in done.err
    check_saved(tmp_path, 1)


def test_a_rank_that_does_not_answer_at_all_is_named_by_the_others(mpirun, tmp_path):
    def stop(process):
        began(tmp_path)
        os.kill(pids(tmp_path, 3)[2], signal.SIGSTOP)

    done = mpirun(3, "job.py", "--out", tmp_path, "--samples", 10**8, "--delay", 0.002, "--stall", 1.0, during=stop)
    assert done.code == 1 and done.seconds < IN_TIME_S + 4 and "Traceback" not in done.err
    assert done.err.count("sprint: stalled: ") == 1
    assert "sprint: stalled: rank 2 (host " in done.err and "gives no sign of life to rank 0" in done.err, done.err
    assert all_gone(pids(tmp_path, 3))


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_one_rank_ends_all_after_the_same_update(mpirun, tmp_path, number, code):
    def send(process):
        began(tmp_path)
        os.kill(pids(tmp_path, 2)[0], number)

    done = mpirun(2, "job.py", "--out", tmp_path, "--samples", 10**8, "--delay", 0.002, during=send)
    assert done.code == code and done.seconds < IN_TIME_S
    assert f"stopped at version {checkpoint(tmp_path, 0)[1]}: {number.name}" in done.err
    assert "Traceback" not in done.err and checkpoint(tmp_path, 0)[1] == checkpoint(tmp_path, 1)[1]


def test_ctrl_c_on_mpirun_leaves_a_checkpoint(mpirun, tmp_path):
    def interrupt(process):
        began(tmp_path)
        process.send_signal(signal.SIGINT)

    done = mpirun(2, "job.py", "--out", tmp_path, "--samples", 10**8, "--delay", 0.002, during=interrupt)
    assert done.code != 0 and done.seconds < IN_TIME_S
    check_saved(tmp_path, 0)
    assert all_gone(pids(tmp_path, 2))
