"""Emulation: waits that keep the pace, the real loops with them, and real ranks beside the prediction."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from sprint.bench import commands_calibrate, pace
from sprint.bench.emulate import emulate
from sprint.bench.loops import Pieces
from sprint.bench.machine_file import read_machine, save_machine
from sprint.bench.model import predict
from sprint.bench.outcome import Config
from sprint.bench.pace import EmulatedWorker, Pace, UpdatePace
from sprint.distributed.buffers import Deposit, GradientBuffer, VersionedWeights
from sprint.distributed.options import Options
from sprint.distributed.progress import Progress
from sprint.distributed.ranks import Single
from sprint.distributed.telemetry import Telemetry
from sprint.distributed.update import Updater
from sprint.distributed.watch import Pulse
from sprint.engine.errors import UsageError
from sprint.engine.nets import build
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed" / "programs"))
from launch import find_mpirun, run_job

PIECES = Pieces(load=0.003, deform=0.001, compute=0.04, update_val=0.002, fetch=0.004, deposit=0.005, take=0.003,
                add=0.006, old=0.002, momentum_add=0.003, reduce=0.008, momentum=0.004, publish=0.005, clear=0.004)


class FakeTime:
    """A clock that only sleeping and working move on; each sleep is `late` s too long."""

    def __init__(self, late=0.0):
        self.now, self.late, self.slept = 100.0, late, []

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds + self.late


@pytest.fixture
def fake(monkeypatch):
    clock = FakeTime()
    monkeypatch.setattr(pace, "time", clock)
    return clock


# ---- the pace

def test_a_piece_is_filled_up_with_a_wait(fake):
    begin = fake.now
    fake.now += 0.25  # real work
    Pace().fill(begin, 1.0)
    assert fake.slept == pytest.approx([0.75])


def test_late_ends_are_made_up_for_by_the_next_pieces(fake):
    fake.late, ticker = 0.02, Pace()
    begin = fake.now
    for _ in range(10):
        ticker.fill(fake.now, 1.0)
    assert fake.now - begin == pytest.approx(10 + 0.02)
    assert ticker.late_s == 0


def test_what_nothing_can_make_up_for_is_counted(fake):
    ticker = Pace()
    begin = fake.now
    fake.now += 3.0
    ticker.fill(begin, 1.0)
    assert fake.slept == []
    assert ticker.late_s == pytest.approx(2.0 - pace.MOST_LATE_S)
    ticker.fill(fake.now, 1.0)
    assert fake.slept == pytest.approx([1.0 - pace.MOST_LATE_S])


def worker(**changes):
    return EmulatedWorker(16, 4, replace(PIECES, **changes), iter([0.04, 0.05]), 0.5)


def test_a_worker_takes_as_long_as_the_pieces_and_copies_what_is_there(fake):
    device, buffer, begin = worker(), np.full(16, np.nan, np.float32), fake.now
    device.fetch(np.arange(16, dtype=np.float32))
    assert fake.now - begin == pytest.approx(PIECES.fetch)
    assert device.compute() == (1.0, 4)
    assert fake.now - begin == pytest.approx(PIECES.fetch + 0.5 + PIECES.load + PIECES.deform + 0.04)
    assert device.times == {"load_image": PIECES.load, "deform_image": PIECES.deform}
    begin = fake.now
    device.deposit(buffer, False, -1.0)
    assert np.isfinite(buffer).all()
    assert device.full
    assert fake.now - begin == pytest.approx(PIECES.update_val + PIECES.deposit)
    begin = fake.now
    device.compute()  # the first wait comes once
    assert fake.now - begin == pytest.approx(PIECES.load + PIECES.deform + 0.05)


@pytest.mark.parametrize(("full", "seconds"), [((), 0.004), ((1,), 0.003), ((0, 2), 0.009), ((0, 1, 2), 0.015)])
def test_the_update_thread_collects_as_long_as_there_are_full_gradbufs(full, seconds):
    """On the real updater; a turn in which nothing else lasts."""
    pieces = replace(PIECES, old=0.0, momentum_add=0.0, reduce=0.0, momentum=0.0, publish=0.0)
    telemetry, workers = Telemetry(3), [worker(update_val=0.0, deposit=0.0) for _ in range(3)]
    buffers = [GradientBuffer(16, 0) for _ in range(3)]
    updater = Updater(Single(), VersionedWeights(np.zeros(16, np.float32)), buffers,
                      Options(lambda samples: 1e-3, diverged_at=0), telemetry, Progress())
    paced = UpdatePace(telemetry.update_clock, workers, pieces)
    for _ in range(2):  # the second turn finds nothing of the first
        for index in full:
            buffers[index].deposit(workers[index], Deposit(index, 0, 0, 4, 1.0), lambda late: -1.0,
                                   telemetry.worker_clocks[index])
        telemetry.update_clock.restart()
        updater.step(Pulse("update"))
        telemetry.update_clock.finish()
        assert not any(device.full for device in workers)
    summed = telemetry.update_clock.recent[:, telemetry.update_clock.terms.index("sum_gradient")]
    assert summed.sum() >= 2 * seconds - 1e-3
    assert summed.sum() <= 2 * seconds + 0.1
    assert summed[0] >= seconds - 1e-3
    assert paced.pace.late_s < 1


# ---- the loops

@pytest.fixture
def slow(toy_data):
    """The toy machine with a gradient of lenet of about 50 ms, and an update of about 25 ms."""
    toy_data["gemm"] = {"sgemm": {"peak_flops": 5e9, "efficiency": 0.5, "bandwidth": 1e10}}
    toy_data["steps"] = {name: {"alpha": 5e-9} for name in toy_data["steps"]}
    toy_data["allreduce"] = {"alpha": 5e-9, "beta": 2e-8}
    return read_machine(toy_data, "slow.json")


def test_one_rank_keeps_the_pace_of_the_machine(slow):
    config = Config(1, 3, 4, images=1000)
    predicted = predict(build("lenet"), slow, config)
    begin = time.perf_counter()
    seen = emulate(Single(), build("lenet"), slow, config, parameters=1000, updates=30, seed=1)
    assert time.perf_counter() - begin > 30 * 0.9 * predicted.t_update
    assert seen.method == "emulate"
    for name, expected in predicted.gpu_terms.items():
        if not name.startswith("lock"):
            assert seen.gpu_terms[name] >= 0.8 * expected
    assert predicted.t_gpu * 0.9 < seen.t_gpu < predicted.t_gpu * 2
    assert predicted.t_update * 0.9 < seen.t_update < predicted.t_update * 2
    assert (seen.minibatch.values % 4 == 0).all()
    assert seen.t_epoch == pytest.approx(1000 * seen.t_update / seen.minibatch.mean)
    assert seen.staleness.values.min() >= 0


@pytest.mark.parametrize("updates", [3, 5000])
def test_too_few_or_too_many_updates_are_refused(slow, updates):
    with pytest.raises(UsageError, match=r"^updates: expected 10 to \d+, got"):
        emulate(Single(), build("lenet"), slow, Config(1, 1, 4), parameters=10, updates=updates, seed=0)


def test_nodes_must_be_the_ranks_that_are_there(tmp_path, slow):
    app = typer.Typer()
    app.command()(commands_calibrate.emulate)
    save_machine(slow, tmp_path / "slow.json")
    result = CliRunner().invoke(app, ["lenet", "--machine", str(tmp_path / "slow.json"), "--nodes", "4", "--subbatch",
                                      "2"])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == ("nodes: expected 1, the ranks that are here, got 4 "
                                     "(mpirun -n 4 sprint emulate ...)")


@pytest.mark.slow
@pytest.mark.skipif(find_mpirun() is None, reason="mpirun is not installed")
def test_ranks_meet_and_stand_beside_prediction_and_simulation(tmp_path, slow):
    save_machine(slow, tmp_path / "slow.json")
    command = [find_mpirun(), "--oversubscribe", "-n", "3", sys.executable, "-m", "sprint", "emulate", "lenet",
               "--machine", str(tmp_path / "slow.json"), "--nodes", "3", "--devices", "2", "--subbatch", "4",
               "--updates", "20", "--parameters", "500", "--json", str(tmp_path / "e.json"), "--plot",
               str(tmp_path / "e.png")]
    finished = run_job(command, tmp_path, limit_s=90.0)
    assert (finished.code, finished.timed_out) == (0, False), finished.err
    assert finished.out.count("predicted, simulated and emulated: 3 nodes x 2 devices") == 1
    made = json.loads((tmp_path / "e.json").read_text())
    assert set(made) == {"predict", "simulate", "emulate"}
    assert made["emulate"]["config"]["nodes"] == 3
    assert made["emulate"]["t_update"] > 0.9 * made["simulate"]["t_update"]
    mean = made["emulate"]["minibatch"]["mean"]
    assert mean == pytest.approx(3 * 2 * 4 * made["emulate"]["t_update"] / made["emulate"]["t_gpu"], rel=0.3)
    assert (tmp_path / "e.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.skipif(find_mpirun() is None, reason="mpirun is not installed")
def test_ranks_measure_the_allreduce_between_them(tmp_path):
    command = [find_mpirun(), "--oversubscribe", "-n", "2", "--bind-to", "none", sys.executable, "-m", "sprint",
               "calibrate", "-o", str(tmp_path / "two.json"), "--nets", "lenet", "--image-size", "16", "--width", "0.1",
               "--classes", "4", "--subbatch", "1", "--device", "host", "--device-threads", "1", "--conv-algo",
               "implicit", "--quick"]
    finished = run_job(command, tmp_path, limit_s=120.0)
    assert (finished.code, finished.timed_out) == (0, False), finished.err
    assert finished.err.count("wrote") == 1
    made = json.loads((tmp_path / "two.json").read_text())
    assert made["sources"]["allreduce"].startswith("measured among 2 ranks on 1 hosts")
    assert made["allreduce"]["alpha"] + made["allreduce"]["beta"] + made["allreduce"]["latency"] > 0


@pytest.mark.slow
@pytest.mark.skipif(find_mpirun() is None, reason="mpirun is not installed")
def test_ranks_bound_to_cores_of_their_own_cannot_measure_a_host(tmp_path):
    command = [find_mpirun(), "--oversubscribe", "-n", "2", "--bind-to", "core", sys.executable, "-m", "sprint",
               "calibrate", "-o", str(tmp_path / "two.json"), "--nets", "lenet", "--subbatch", "1", "--device", "host"]
    finished = run_job(command, tmp_path, limit_s=60.0)
    assert (finished.code, finished.timed_out) == (2, False), finished.err
    assert finished.err.count("sprint: calibrate: expected ranks that share the cores of their host") == 1
