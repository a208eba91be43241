from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from sprint.distributed.comm import open_comm
from sprint.distributed.launch import LAUNCHERS, launched
from sprint.distributed.ranks import AgreedError, Single, agree_signature, label, plural, slice_of


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


def test_one_process_needs_no_mpi(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    comm = open_comm()
    assert isinstance(comm, Single) and (comm.rank, comm.size, comm.local_rank, comm.can_shrink) == (0, 1, 0, False)
    send, recv = np.array([1.0, -2.0], np.float32), np.full(2, np.nan, np.float32)
    comm.allreduce(send, recv)
    np.testing.assert_array_equal(recv, send)
    assert comm.gather_all([3.0, 4.0]).tolist() == [[3.0, 4.0]] and comm.agree(True) and not comm.agree(False)
    with pytest.raises(RuntimeError, match="shrink: expected 2 or more ranks, got 1"):
        comm.shrink()


def test_importing_the_package_imports_no_mpi():
    code = "import sys, sprint.distributed.sprint; print('mpi4py' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize("send, error, text", [
    (np.zeros(4), TypeError, "allreduce: expected float32, got float64"),
    (np.zeros((2, 2), np.float32), ValueError, r"one flat contiguous buffer, got shape \(2, 2\)"),
    (np.zeros(8, np.float32)[::2], ValueError, r"strides \(8,\)"),
])
def test_buffers_that_mpi_would_misread_are_refused_on_one_rank_too(send, error, text):
    with pytest.raises(error, match=text):
        Single().allreduce(send, np.zeros(4, np.float32))


def test_launcher_variables_are_read_in_order(monkeypatch):
    assert launched() is None
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert launched() == ("SLURM_NTASKS", 8)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")  # mpirun -n 2 in an allocation of 8 tasks
    assert launched() == ("OMPI_COMM_WORLD_SIZE", 2)


def test_slices_cover_everything_once_for_any_number_of_ranks():
    for n in (0, 1, 5, 97):
        for count in (1, 2, 3, 7):
            covered = np.zeros(n, int)
            for index in range(count):
                covered[slice_of(n, index, count)] += 1
            assert (covered == 1).all()


def test_one_is_singular():
    assert [plural(n, "checkpoint") for n in (0, 1, 2)] == ["0 checkpoints", "1 checkpoint", "2 checkpoints"]


def test_signature_names_both_ranks_and_numbers():
    class Two(Single):
        size, ids, hosts = 2, [0, 1], ["a", "b"]

        def gather_all(self, values):
            return np.array([values, [values[0] + 1, *values[1:]]])

    two = Two()
    two.ids, two.hosts, two.size = [0, 1], ["a", "b"], 2
    with pytest.raises(AgreedError, match=r"parameters .* got 10 on rank 0 \(host a\) and 11 on rank 1 \(host b\)"):
        agree_signature(two, "0123456789ab", 10, 0)
    agree_signature(Single(), "0123456789ab", 10, 0)
    assert label(two, 1) == "rank 1 (host b)"


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"])
def test_launcher_of_another_mpi_is_refused_with_both_numbers(variable, tmp_path):
    pytest.importorskip("mpi4py")
    env = {**os.environ, variable: "4"}
    program = os.path.join(os.path.dirname(__file__), "programs", "job.py")
    out = subprocess.run([sys.executable, program, "--out", str(tmp_path)], capture_output=True, text=True,
                         timeout=20, env=env)
    assert out.returncode != 0
    assert f"the launcher says {variable}=4, MPI says 1 rank:" in out.stderr and "Traceback" not in out.stderr


def test_launched_without_mpi4py_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(RuntimeError, match=r"PMI_SIZE=3 but mpi4py cannot be imported .* install sprint-cnn\[mpi\]"):
        open_comm()


@pytest.mark.parametrize("level", ["serialized", "single", "funneled"])
def test_too_low_a_thread_level_is_refused_with_the_reason(mpirun, tmp_path, level):
    done = mpirun(2, "job.py", "--out", tmp_path, env={"MPI4PY_RC_THREAD_LEVEL": level})
    assert done.code != 0 and done.seconds < 10
    assert f"expected MPI thread level multiple, got {level}: the update thread is in a collective" in done.err
    assert "Traceback" not in done.err


@pytest.mark.smoke
def test_collectives_of_three_ranks(mpirun, tmp_path):
    done = mpirun(3, "collectives.py")
    assert done.code == 0, done.err
    assert sorted(done.out.split()) == ["ok-0", "ok-1", "ok-2"]
