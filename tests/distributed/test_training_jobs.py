"""`mpirun -n N sprint train`: several ranks, the real engine, and every fault that a user may meet or inject."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from launch import PROGRAMS, descendants, find_mpirun, run_job
from sprint.engine import checkpoint
from sprint.engine.runs import RunFolder

SMALL = ["train", "cnn-a", "--data", "digits", "--limit", "97", "--image-size", "16", "--width", "0.25", "--device",
         "host", "--conv-algo", "explicit", "--log-every", "5", "--lr", "0.005"]
ENDLESS = [*SMALL, "--algorithm", "sprint", "--subbatch", "4", "--epochs", "100000", "--schedule", "constant"]
IN_TIME_S = 10.0
pytestmark = pytest.mark.timeout(100)


@pytest.fixture
def job(tmp_path):
    """job(ranks, options, ...) or job([options of rank 0, options of rank 1, ...], ...) -> Finished."""
    if find_mpirun() is None:
        pytest.skip("mpirun is not installed")

    def run(ranks, options=(), *, ft=False, limit_s=40.0, env=None, during=None):
        folder = tmp_path / f"job{len(list(tmp_path.glob('job*')))}"
        folder.mkdir()
        each = [[str(n), options] for n in [ranks]] if isinstance(ranks, int) else [["1", own] for own in ranks]
        parts = [["-n", n, sys.executable, "-m", "sprint", *map(str, own)] for n, own in each]
        command = [find_mpirun(), *(["--with-ft", "ulfm"] if ft else []), "--oversubscribe", *parts[0]]
        for part in parts[1:]:
            command += [":", *part]
        done = run_job(command, folder, limit_s, env, during)
        assert not done.timed_out, f"job hung for {done.seconds:.1f} s:\n{done.out}\n{done.err}"
        return done

    return run


def last(path):
    return checkpoint.load(checkpoint.find(path))


def flat(saved):
    return np.concatenate([array.ravel() for array in saved.weights.values()])


def summary(path):
    return json.loads((path / "summary.json").read_text())


def trained(path, step=3):
    """Wait until the run has made some updates."""
    deadline = time.monotonic() + 25
    while time.monotonic() < deadline and not any(r["step"] >= step for r in RunFolder(path).metrics()):
        time.sleep(0.02)


# ---- sums -------------------------------------------------------------------------------------------------------


def test_sync_on_two_ranks_and_on_four_uneven_ones_is_the_run_of_one_device(job, tmp_path):
    """Mini-batches of 32 of 97 images, over two ends of an epoch."""
    common = [*SMALL, "--steps", "10", "--algorithm", "sync", "--augment", "--deterministic"]
    one = job(1, [*common, "--subbatch", 32, "--out", tmp_path / "1"])
    two = job(2, [*common, "--subbatch", 16, "--out", tmp_path / "2", "--device-threads", 1])
    four = job([[*common, "--subbatch", b, "--out", tmp_path / "4", "--device-threads", 1] for b in (5, 9, 8, 10)])
    for done in (one, two, four):
        assert done.code == 0, done.err
    saved = [last(tmp_path / name) for name in "124"]
    scale = np.abs(flat(saved[0])).max()
    for other in saved[1:]:
        assert np.abs(flat(other) - flat(saved[0])).max() <= 1e-5 * scale
        assert (other.step, other.epoch) == (10, saved[0].epoch)
    assert "4 ranks with 1 worker each" in four.out and "mini-batch 32" in four.out
    assert four.out.count("sprint   ") == four.out.count("done     ") == 1 and "\x1b" not in four.out
    layout = json.loads((tmp_path / "4" / "config.json").read_text())["job"]["layout"]
    assert [row["subbatch"] for row in layout] == [5, 9, 8, 10]


def test_two_ranks_with_two_workers_learn_and_their_order_can_be_replayed(job, tmp_path):
    done = job(2, [*SMALL, "--algorithm", "sprint", "--devices", "2", "--subbatch", "8", "--epochs", "3", "--out",
                   tmp_path / "r", "--deterministic", "--check-every", "5", "--save-every", "3"])
    assert done.code == 0, done.err
    ended = summary(tmp_path / "r")
    assert (ended["ranks"], ended["workers"], ended["test_images"]) == (2, 4, 97)
    assert 1 <= done.out.count("test     epoch") <= 3 and "2 ranks with 2 workers each on 1 host" in done.out
    final = RunFolder(tmp_path / "r").metrics()[-1]
    job_gradients = sum(final["staleness_histogram"]["counts"])
    assert job_gradients == last(tmp_path / "r").worker["progress"]["gradients"] > ended["steps"]
    trace = json.loads((tmp_path / "r" / "trace.json").read_text())
    assert {(e["pid"], e["tid"]) for e in trace if e.get("cat") == "gradient"} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert sum(e.get("ph") == "s" for e in trace) == job_gradients
    again = job(1, ["replay", tmp_path / "r"])
    assert again.code == 0 and f"version {ended['steps']}: equal bit for bit" in again.out, again.out + again.err


def test_a_run_goes_on_on_other_numbers_of_ranks(job, tmp_path):
    first = [*SMALL, "--algorithm", "sprint", "--devices", 2, "--subbatch", 4, "--steps", 12, "--out", tmp_path / "r"]
    assert job(2, first).code == 0
    before = last(tmp_path / "r").worker
    assert before["ids"] == [0, 1] and len(list((tmp_path / "r" / "checkpoints").glob("step-*12.rank*.json"))) == 2
    done = job(3, ["train", "cnn-a", "--resume", tmp_path / "r", "--steps", 24, "--devices", 1])
    assert done.code == 0 and "3 ranks with 1 worker each" in done.out, done.err
    after = last(tmp_path / "r").worker
    assert after["ids"] == [0, 1, 2] and after["progress"]["samples"] > before["progress"]["samples"]
    steps = [r["step"] for r in RunFolder(tmp_path / "r").metrics()]
    assert steps == sorted(set(steps)) and steps[-1] == 24


# ---- deaths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim, algorithm", [(0, "sprint"), (1, "sprint"), (1, "sync")])
def test_under_ulfm_the_death_of_a_rank_is_survived_and_said(job, tmp_path, victim, algorithm):
    """When rank 0 dies, rank 1 takes over the run folder."""
    done = job(2, [*SMALL, "--algorithm", algorithm, "--subbatch", "4", "--epochs", "7", "--out", tmp_path / "r",
                   "--inject", f"kill-rank={victim}@update=6"], ft=True)
    assert done.code == 0, done.err
    if done.err:  # mpirun may lose what a survivor wrote while it cleans up after the dead; the folder tells anyway
        assert f"rank {victim} (host " in done.err and "died; 1 rank goes on with update 6" in done.err
    ended = summary(tmp_path / "r")
    assert (ended["ranks"], ended["ranks_at_start"], ended["workers"]) == (1, 2, 1) and ended["samples"] >= 7 * 97
    steps = [r["step"] for r in RunFolder(tmp_path / "r").metrics()]
    assert steps == sorted(set(steps)) and steps[-1] == ended["steps"] == last(tmp_path / "r").step
    assert "top1" in RunFolder(tmp_path / "r").metrics()[-1]


@pytest.mark.parametrize("victim", [0, 1])
def test_without_ulfm_a_death_ends_all_ranks_with_the_last_published_version_saved(job, tmp_path, victim):
    done = job(2, [*ENDLESS, "--out", tmp_path / "r", "--inject", f"kill-rank={victim}@update=40"])
    assert done.code != 0
    assert ended_in_time(done, tmp_path)
    assert last(tmp_path / "r").step == 39
    assert only_line(done) == saved_line(39, tmp_path)


def ended_in_time(done, tmp_path):
    """The start may take long on a busy machine: what counts is the time since the last record."""
    newest = max(path.stat().st_mtime for path in (tmp_path / "r").rglob("*"))
    return time.time() - newest < IN_TIME_S


@pytest.mark.parametrize("ft", [False, True])
def test_a_worker_that_raises_ends_all_ranks_with_its_traceback_first(job, tmp_path, ft):
    done = job(2, [*ENDLESS, "--out", tmp_path / "r", "--inject", "raise-worker=1@update=20"], ft=ft)
    assert done.code == 1 and ended_in_time(done, tmp_path)
    assert done.err.startswith("sprint: rank 1 (host ") and done.err.count("Traceback") == 1
    assert done.err.index("injected: worker 0 raises") < done.err.index("a worker of rank 1 failed")
    assert last(tmp_path / "r").step >= 19


def test_a_gradient_that_is_not_a_number_stops_all_ranks_with_one_line(job, tmp_path):
    done = job(2, [*ENDLESS, "--out", tmp_path / "r", "--inject", "nan-grad=1@update=20"])
    assert done.code == 1 and ended_in_time(done, tmp_path)
    lines = [line for line in done.err.splitlines() if line.startswith("sprint: ")]
    assert len(lines) == 1 and "diverged: the weights would not be finite" in lines[0] and "Traceback" not in done.err
    assert last(tmp_path / "r").step >= 19 and np.isfinite(flat(last(tmp_path / "r"))).all()


def test_a_late_rank_only_delays(job, tmp_path):
    done = job(2, [*SMALL, "--algorithm", "sync", "--subbatch", "4", "--epochs", "4", "--out", tmp_path / "r",
                   "--inject", "delay-rank=1@update=5,seconds=1+delay-rank=0@update=9,seconds=1"])
    assert done.code == 0, done.err
    assert summary(tmp_path / "r")["seconds"] > 2 and summary(tmp_path / "r")["samples"] == 4 * 97


def test_a_stall_is_named(job, tmp_path):
    done = job(2, [*ENDLESS, "--out", tmp_path / "r", "--stall", "2", "--inject", "delay-rank=1@update=5,seconds=60"])
    assert done.code == 1 and ended_in_time(done, tmp_path)
    stall, *more = said(done)  # rank 0, which rank 1 ends, may say how to go on
    assert re.match(r"sprint: stalled: rank 1 \(host \S+\): thread update: collect gradients, update 5, for 2\.\d s "
                    r"\(limit 2 s\)$", stall)
    assert last(tmp_path / "r").step == 4 and more in ([], [saved_line(4, tmp_path)])


def said(done):
    """The lines of the ranks; no traceback."""
    assert "Traceback" not in done.err, done.err
    return [line for line in done.err.splitlines() if line.startswith("sprint: ")]


def only_line(done):
    """What the ranks say, in one line."""
    assert len(said(done)) == 1, done.err
    return said(done)[0]


def saved_line(version, tmp_path):
    return (f"sprint: the job was killed; version {version} is saved; go on with: "
            f"[mpirun -n N] sprint train cnn-a --resume {tmp_path / 'r'}")


@pytest.fixture
def stuck(tmp_path):
    """stuck(place, rank, way, stall_s) -> Finished: two ranks, one of which does not get on at that place."""
    if find_mpirun() is None:
        pytest.skip("mpirun is not installed")

    def run(place, rank, way, stall_s, *, ranks=2, ft=False, seconds=60):
        command = [find_mpirun(), *(["--with-ft", "ulfm"] if ft else []), "--oversubscribe", "-n", ranks,
                   sys.executable, PROGRAMS / "stuck.py", place, rank, way, seconds, *SMALL, "--algorithm", "sprint",
                   "--subbatch", "4", "--epochs", "2", "--stall", stall_s, "--out", tmp_path / "r"]
        done = run_job(list(map(str, command)), tmp_path, 40.0)
        assert not done.timed_out, f"job hung for {done.seconds:.1f} s:\n{done.out}\n{done.err}"
        return done

    return run


@pytest.mark.parametrize("place, rank, ranks, ft, doing", [
    ("open", 1, 2, False, "open: meet"), ("score", 1, 3, False, "score: gather_all"), ("score", 0, 2, True, "score: "),
    ("end", 0, 2, False, "record: meet")])
def test_a_rank_that_is_stopped_while_the_main_threads_call_mpi_is_named(stuck, place, rank, ranks, ft, doing):
    """At the start, while the test images are scored, and while rank 0 writes the summary."""
    done = stuck(place, rank, "stop", 2, ranks=ranks, ft=ft)
    who = 1 if rank == 0 else 0  # the first of those that wait
    found = re.match(rf"sprint: stalled: rank {rank} \(host \S+\) gives no sign of life to rank {who} \(host \S+\): "
                     rf"thread main: {doing}.*, update \d+, for (\d+\.\d) s \(limit 2 s\)$", only_line(done))
    most_s = 30 if place == "end" else 3.6  # rank 0 draws before it is stopped
    assert done.code == 1 and found and 2.2 <= float(found[1]) <= most_s, done.err


def test_a_rank_that_waits_for_its_disk_says_so(stuck):
    done = stuck("save", 1, "sleep", 2)
    assert done.code == 1 and re.match(
        r"sprint: stalled: rank 1 \(host \S+\): thread main: run: save, update \d+, for 2\.\d s \(limit 2 s\)$",
        only_line(done))


def test_a_rank_that_computes_for_long_is_waited_for(stuck, tmp_path):
    done = stuck("score", 1, "work", 1.5, seconds=4)
    assert done.code == 0 and done.err == "" and summary(tmp_path / "r")["seconds"] > 8


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_one_rank_ends_all_after_the_same_update_and_says_how_to_go_on(job, tmp_path, number, code):
    def send(process):
        trained(tmp_path / "r")
        ranks = [pid for pid in descendants(process.pid) if b"-m\0sprint" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(ranks[-1], number)

    done = job(2, [*ENDLESS, "--out", tmp_path / "r"], during=send)
    assert done.code == code and ended_in_time(done, tmp_path)
    line = re.search(r"sprint: stopped at version (\d+): (\w+); go on with: \[mpirun -n N\] sprint train cnn-a "
                     r"--resume (\S+)\n", done.err)
    assert line and line[2] == number.name and line[3] == str(tmp_path / "r") and "Traceback" not in done.err
    assert last(tmp_path / "r").step == int(line[1])


# ---- starts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first, second, code, words", [
    (["--lr", "0.1"], ["--lr", "0.2"], 1, "start: expected the same configuration on all ranks, got "),
    ([], ["--lr", "-1"], 2, r"rank 1 \(host \S+\): lr: expected a number > 0 and <= 3.4e\+38, got -1\.0"),
    ([], ["--data-dir", "/nowhere", "--data", "mnist"], 1, "start: expected the same configuration"),
    (["--data", "mnist", "--data-dir", "/nowhere"], ["--data", "mnist", "--data-dir", "/nowhere"], 2,
     "mnist: expected --data-dir to be a folder, got /nowhere"),
])
def test_ranks_that_cannot_run_together_say_so_in_one_line(job, tmp_path, first, second, code, words):
    common = [*SMALL, "--algorithm", "sprint", "--out", tmp_path / "r"]
    done = job([[*common, *first], [*common, *second]])
    lines = [line for line in done.err.splitlines() if line.startswith("sprint: ")]
    assert done.code == code and len(lines) == 1 and re.search(words, lines[0]), done.err
    assert done.out == "" and "Traceback" not in done.err and not (tmp_path / "r").exists()


def test_a_rank_that_is_mistyped_ends_all_through_mpi(job, tmp_path):
    """Open MPI's mpirun may miss a mere exit code while the other rank starts MPI."""
    good = [*SMALL, "--algorithm", "sync", "--out", tmp_path / "r"]
    done = job([good, [*good, "--nonsense"]])
    assert done.code == 2 and done.err.count("No such option: --nonsense") == 1
    assert "MPI_ABORT was invoked on rank 1" in done.err and not (tmp_path / "r").exists()


def test_a_local_run_on_two_ranks_is_refused(job, tmp_path):
    done = job(2, [*SMALL, "--out", tmp_path / "r"])
    assert done.code == 2 and "algorithm: expected sync or sprint on 2 ranks, got local" in done.err
    assert done.err.count("sprint: ") == 1 and not (tmp_path / "r").exists()


def test_another_mpis_launcher_and_a_low_thread_level_are_refused(job, tmp_path):
    command = [sys.executable, "-m", "sprint", *SMALL, "--algorithm", "sync", "--out", str(tmp_path / "r")]
    done = run_job(command, tmp_path, 30.0, {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"})
    assert done.code == 1 and "the launcher says OMPI_COMM_WORLD_SIZE=4, MPI says 1 rank" in done.err
    done = job(2, command[3:], env={"MPI4PY_RC_THREAD_LEVEL": "funneled"})
    assert done.code == 1 and "expected MPI thread level multiple, got funneled" in done.err
    assert "Traceback" not in done.err and not (tmp_path / "r").exists()
