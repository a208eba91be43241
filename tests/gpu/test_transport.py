"""On a GPU (make test-gpu): page-locked copies, and the ranks' sums in device memory by NCCL and CUDA-aware MPI."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sprint.__main__ import run
from sprint.distributed.probe import ask_child
from sprint.engine import checkpoint
from sprint.kernels import nccl
from sprint.kernels.cuda import CudaDevice
from sprint.kernels.device import elements

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed/programs"))
from launch import find_mpirun, run_job, run_program

pytestmark = pytest.mark.gpu
TRAIN = ["train", "mlp", "--data", "digits", "--limit", "24", "--image-size", "8", "--width", "0.05", "--subbatch", "4",
         "--steps", "3", "--algorithm", "sync", "--device", "cuda"]
LIMIT_S = 120.0


@pytest.fixture
def ranks(request, tmp_path):
    """ranks(2, option, ...) trains on so many ranks, in processes of their own."""
    if request.config.getoption("--stand-in"):
        pytest.skip("other processes have no stand-in")
    if find_mpirun() is None:
        pytest.skip("mpirun is not installed")

    def start(count, *options):
        command = [find_mpirun(), "--oversubscribe", "-n", str(count), sys.executable, "-m", "sprint", *TRAIN, *options]
        done = run_job(command, tmp_path, LIMIT_S)
        assert not done.timed_out, done.err
        return done

    return start


def gpus():
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


def weights(path):
    return np.concatenate([a.ravel() for a in checkpoint.load(checkpoint.find(path)).weights.values()])


@pytest.mark.parametrize("n", [1, 1003, 5_000_001])
def test_vectors_go_up_and_come_down_whole_behind_the_kernels(rng, n):
    device = CudaDevice(0)
    stage, array, vector = device.stage(n), device.zeros(n), rng.standard_normal(n).astype(np.float32)
    for factor in (2.0, -0.5):
        expected = np.float32(factor) * vector
        source = vector.copy()
        stage.up(array, source)
        source.fill(np.nan)
        device.launch("update", "scale", elements(n), array, factor, n)
        assert np.array_equal(stage.down(array), expected)


def need_nccl():
    if reason := nccl.missing():
        pytest.skip(reason)


def test_one_rank_with_nccl_trains_as_without(tmp_path):
    need_nccl()
    for name, options in (("host", []), ("nccl", ["--nccl"])):
        assert run([*TRAIN, "--out", str(tmp_path / name), *options]) == 0
        assert json.loads((tmp_path / name / "config.json").read_text())["job"]["transport"] == name
    assert np.array_equal(weights(tmp_path / "host"), weights(tmp_path / "nccl"))


def test_two_ranks_with_nccl_train_as_without(ranks, tmp_path):
    need_nccl()
    if gpus() < 2:
        pytest.skip("NCCL wants a GPU for each rank")
    for name, options in (("host", []), ("nccl", ["--nccl"])):
        done = ranks(2, "--out", str(tmp_path / name), *options)
        assert done.code == 0, done.err
    np.testing.assert_allclose(weights(tmp_path / "nccl"), weights(tmp_path / "host"), rtol=1e-5, atol=1e-6)


def test_an_mpi_that_takes_device_memory_sums_in_it(ranks, tmp_path):
    if outcome := ask_child("0"):
        pytest.skip(f"this MPI: {outcome}")
    done = run_program(2, "device_sum.py", [5_000_001], tmp_path, limit_s=LIMIT_S)
    assert done.code == 0 and done.out.count("of 2: right") == 2, done.err
    if gpus() > 1:
        for name, options in (("host", []), ("cuda-aware", ["--cuda-aware"])):
            done = ranks(2, "--out", str(tmp_path / name), *options)
            assert done.code == 0, done.err
        np.testing.assert_allclose(weights(tmp_path / "cuda-aware"), weights(tmp_path / "host"), rtol=1e-5, atol=1e-6)


def test_an_mpi_that_does_not_is_refused_by_both_ranks_in_one_line(ranks, tmp_path):
    if ask_child("0") is None:
        pytest.skip("this MPI takes device memory")
    done = ranks(2, "--out", str(tmp_path / "r"), "--cuda-aware")
    lines = [line for line in done.err.splitlines() if line.startswith("sprint:")]
    assert done.code == 1 and not (tmp_path / "r").exists() and "Traceback" not in done.err
    assert len(lines) == 1 and "cuda-aware: expected MPI to sum 1,000 floats on cuda:0 in a child process" in lines[0]
