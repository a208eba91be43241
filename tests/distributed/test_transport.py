"""Sums in host memory, by MPI in device memory and by NCCL, on the stand-in for CuPy; and the child that tries MPI."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from sprint.__main__ import run
from sprint.distributed import opening, probe
from sprint.distributed.layout import Place
from sprint.distributed.ranks import Single, StartError
from sprint.distributed.transport import DeviceTransport, HostTransport, by_mpi, by_nccl, rehearse
from sprint.engine import checkpoint
from sprint.engine.config import TrainConfig
from sprint.engine.errors import UsageError
from sprint.kernels import nccl
from sprint.kernels.cuda import CudaDevice

N = 1003
SMALL = ["train", "mlp", "--data", "digits", "--limit", "24", "--image-size", "8", "--width", "0.05", "--subbatch", "4",
         "--steps", "3", "--log-every", "1", "--device", "cuda"]
WORKS = """
import numpy, sys
from mpi4py import MPI
send = numpy.arange(1000, dtype=numpy.float32)
recv = numpy.empty_like(send)
MPI.COMM_WORLD.Allreduce(send, recv)
sys.exit(not MPI.COMM_WORLD.size == (recv == send).all() == 1)
"""
CRASHES = "import os; os.kill(os.getpid(), 11)"


class Rank(Single):
    """One of several ranks that are threads of this process."""

    def __init__(self, rank, size, barrier, slots):
        super().__init__()
        self.rank, self.size, self._barrier, self._slots = rank, size, barrier, slots
        self.ids, self.hosts = list(range(size)), ["here"] * size

    def everybodys(self, value):
        self._slots[self.rank] = value
        self._barrier.wait(10)
        every = [self._slots[rank] for rank in range(self.size)]
        self._barrier.wait(10)
        return every

    def gather_all(self, values):
        return np.array(self.everybodys(values))

    def meet(self, values):
        values[:] = sum(self.everybodys(values.copy()))

    def broadcast(self, array, root):
        array[:] = self.everybodys(array.copy())[root]

    def device_allreduce(self, send, recv):
        recv.host[:] = sum(self.everybodys(send.host.copy()))


def on_ranks(size, work):
    """What work(comm) returns, or raises, on each of `size` ranks."""
    barrier, slots, outcomes = threading.Barrier(size), {}, [None] * size

    def one(rank):
        try:
            outcomes[rank] = work(Rank(rank, size, barrier, slots))
        except BaseException as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return outcomes


def transport_of(comm, name, device=None):
    """What a run with that option opens."""
    config = TrainConfig("mlp", algorithm="sync", **{name: True})
    return opening._transport(comm, config, Place([device or f"cuda:{comm.rank}"], None), N)


# ---- the sums ---------------------------------------------------------------------------------------------------


def test_the_hosts_sum_is_the_communicators():
    comm = SimpleNamespace(allreduce=lambda send, recv: called.append("free"),
                           ordered_allreduce=lambda send, recv: called.append("in order"))
    called, vectors = [], np.zeros((2, 3), np.float32)
    HostTransport(comm).allreduce(*vectors)
    HostTransport(comm, ordered=True).allreduce(*vectors)
    assert called == ["free", "in order"]


@pytest.mark.parametrize("name", ["cuda_aware", "nccl"])
def test_sums_in_device_memory_come_back_to_the_host_and_take_nothing_on_the_way(cupy, name):
    vectors = np.random.default_rng(1).normal(size=(3, 2, N)).astype(np.float32)  # updates, ranks

    def work(comm):
        transport = transport_of(comm, name)
        comm.everybodys(None)
        before = len(cupy.memory), len(cupy.pinned)
        recv, sums = np.full(N, np.nan, np.float32), []
        for update in vectors:
            sent = update[comm.rank].copy()
            transport.allreduce(sent, recv)
            assert np.array_equal(sent, update[comm.rank])
            sums.append(recv.copy())
        comm.everybodys(None)
        assert (len(cupy.memory), len(cupy.pinned)) == before
        transport.close()
        return transport.name, sums

    for outcome in on_ranks(2, work):
        assert not isinstance(outcome, BaseException), outcome
        assert outcome[0] == name.replace("_", "-") and np.array_equal(outcome[1], vectors[:, 0] + vectors[:, 1])


def test_mpi_gets_device_arrays_with_no_work_left_on_them(cupy):
    device, seen = CudaDevice(1), []

    def collective(send, recv):
        seen.append((type(send), type(recv), device._stream.done == len(device._stream.work)))
        recv.host[:] = 3 * send.host

    send, recv = np.arange(N, dtype=np.float32), np.empty(N, np.float32)
    by_mpi(SimpleNamespace(device_allreduce=collective), device, N).allreduce(send, recv)
    array = type(device.zeros(1))
    assert seen == [(array, array, True)] and np.array_equal(recv, 3 * send)


def test_the_stream_of_the_sums_is_not_the_workers(cupy):
    worker = CudaDevice(0)
    transport_of(Single(), "nccl", "cuda:0").allreduce(*np.ones((2, N), np.float32))
    assert worker._stream.work == []


def test_vectors_that_do_not_fit_are_refused(cupy):
    transport = by_nccl(Single(), CudaDevice(0), N, nccl.new_identity())
    for wrong, error in ((np.ones(N), TypeError), (np.ones(1, np.float32), ValueError)):
        with pytest.raises(error, match="expected"):
            transport.allreduce(wrong, np.ones(N, np.float32))
        with pytest.raises((error, ValueError)):
            transport.allreduce(np.ones(N, np.float32), wrong)


def test_two_ranks_on_one_gpu_are_refused_by_nccl_in_one_line(cupy):
    for error in on_ranks(2, lambda comm: transport_of(comm, "nccl", "cuda:0")):
        assert isinstance(error, StartError) and str(error).startswith("nccl join: NCCL_ERROR_INVALID_USAGE: ")


def test_a_first_sum_that_is_wrong_or_fails_ends_the_run(cupy):
    def keeps(device):
        """A sum as if there were one rank."""
        alone = SimpleNamespace(device_allreduce=lambda send, recv: np.copyto(recv.host, send.host))
        return by_mpi(alone, device, N)

    def fails(send, recv):
        raise RuntimeError("allreduce: no")

    def work(comm):
        device = CudaDevice(comm.rank)
        with pytest.raises(StartError, match=r"^cuda-aware: a first sum over 2 ranks failed: allreduce: no$"):
            rehearse(comm, DeviceTransport("cuda-aware", device, N, fails), N)
        check = rehearse(comm, keeps(device), N)
        with pytest.raises(RuntimeError, match=f"expected a right first sum over 2 ranks, got {N} of {N} floats wrong"):
            check()

    assert on_ranks(2, work) == [None, None]
    rehearse(Single(), keeps(CudaDevice(0)), N)()


# ---- the child --------------------------------------------------------------------------------------------------


@pytest.fixture
def child(monkeypatch):
    """child(program, limit_s): what ask_child() says of it."""
    def ask(program, limit_s=20.0):
        monkeypatch.setattr(probe, "PROGRAM", program)
        monkeypatch.setattr(probe, "LIMIT_S", limit_s)
        return probe.ask_child("1")

    return ask


def test_a_child_that_succeeds_says_nothing(child):
    assert child("import sys; print('seen'); sys.exit(sys.argv[1] != '1')") is None


@pytest.mark.parametrize("program, outcome", [
    (CRASHES, "its death by SIGSEGV"),
    ("import sys; sys.exit(3)", "exit code 3"),
    ("import sys; sys.exit('first\\na sum that is wrong')", "a sum that is wrong"),
    ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
])
def test_a_child_that_fails_tells_how(child, program, outcome):
    assert child(program) == outcome


def test_a_child_that_hangs_is_ended(child, tmp_path):
    began = time.monotonic()
    program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    assert child(program, 1.0) == "no answer in 1 s" and time.monotonic() - began < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_child_is_outside_the_job_and_keeps_the_users_mpi_parameters(child, monkeypatch):
    for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_NTASKS", "OMPI_MCA_pml"):
        monkeypatch.setenv(name, "1")
    kept = child("import os, sys; sys.exit(' '.join(os.environ))").split()
    assert "OMPI_MCA_pml" in kept and not {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_NTASKS"} & set(kept)


def test_the_true_program_fails_here_where_there_is_no_cupy():
    if importlib.util.find_spec("cupy"):
        pytest.skip("CuPy is installed")
    assert probe.ask_child("0") == "ModuleNotFoundError: No module named 'cupy'"


# ---- what is refused --------------------------------------------------------------------------------------------


def refused(capsys, path, *options):
    """Exit code and the only line of a run that writes nothing."""
    code = run([*SMALL, "--out", str(path / "r"), *options])
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and not (path / "r").exists()
    return code, err.removeprefix("sprint: ").strip()


@pytest.mark.parametrize("options, line", [
    (["--nccl"], "nccl: expected --algorithm sync or sprint, got local"),
    (["--algorithm", "sprint", "--cuda-aware", "--nccl"], "nccl: expected one way of the sums, got --cuda-aware too"),
    (["--algorithm", "sync", "--device", "host", "--cuda-aware"], "cuda-aware: expected cuda devices, got host:0"),
    (["--algorithm", "sync", "--device", "host", "--nccl"], "nccl: expected cuda devices, got host:0"),
    (["--algorithm", "sync", "--cuda-aware"], "cuda-aware: expected 2 or more ranks (mpirun -n N), got 1"),
    (["--algorithm", "sync", "--nccl", "--deterministic", "--conv-algo", "explicit"],
     "nccl: expected no --deterministic, whose sums in rank order are the host's, got both"),
])
def test_what_cannot_go_together_is_refused_in_one_line(cupy, capsys, tmp_path, options, line):
    assert refused(capsys, tmp_path, *options) == (2, line)


def test_without_nccl_the_cure_is_named(cupy, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["cupy.cuda.nccl"], "available", False)
    code, line = refused(capsys, tmp_path, "--algorithm", "sprint", "--nccl")
    assert code == 1 and line.startswith("nccl: CuPy finds no NCCL (no libnccl); python -m cupyx.tools.install_library")


def test_without_cuda_its_cure_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("sprint.kernels.cuda.missing", lambda: "no NVIDIA driver; install it")
    for option in ("--nccl", "--cuda-aware"):
        assert refused(capsys, tmp_path, "--algorithm", "sync", option) == (1, "cuda:0: no NVIDIA driver; install it")


def test_nccl_and_ulfm_do_not_go_together(cupy):
    comm, config = SimpleNamespace(can_shrink=True, size=2), TrainConfig("mlp", algorithm="sprint", nccl=True)
    with pytest.raises(UsageError, match=r"^nccl: expected mpirun without --with-ft ulfm"):
        probe.check_transport(comm, config, Place(["cuda:0"], None))


# ---- whole runs -------------------------------------------------------------------------------------------------


def weights(path):
    return np.concatenate([a.ravel() for a in checkpoint.load(checkpoint.find(path)).weights.values()])


def test_a_run_with_nccl_says_so_and_trains_as_without(cupy, capsys, tmp_path):
    for name, options in (("host", []), ("nccl", ["--nccl"])):
        assert run([*SMALL, "--algorithm", "sync", "--out", str(tmp_path / name), *options]) == 0
        assert ("sums     by NCCL in device memory" in capsys.readouterr().out) == (name == "nccl")
        assert json.loads((tmp_path / name / "config.json").read_text())["job"]["transport"] == name
    assert np.array_equal(weights(tmp_path / "host"), weights(tmp_path / "nccl"))


@pytest.mark.timeout(120)
def test_two_ranks_give_mpi_their_device_arrays(mpirun, tmp_path):
    """The stand-in's memory is the host's, so any MPI can sum it; mpi4py takes it as it takes CuPy's.

    The children are jobs of one rank, in MPI but outside the job of their parents.
    """
    for name, options in (("host", []), ("cuda-aware", ["--cuda-aware"])):
        done = mpirun(2, "stand_in.py", WORKS, *SMALL, "--algorithm", "sync", "--out", tmp_path / name, *options,
                      limit_s=50.0)
        assert done.code == 0, done.err
        assert f"sums     by MPI in {'host' if name == 'host' else 'device'} memory" in done.out
    assert np.array_equal(weights(tmp_path / "host"), weights(tmp_path / "cuda-aware"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("where", ["rank 1", "all"])
def test_an_mpi_that_crashes_in_the_child_is_refused_by_all_ranks_in_one_line(mpirun, tmp_path, where):
    program = CRASHES if where == "all" else f"import sys\nif sys.argv[1] == '1': {CRASHES}"
    done = mpirun(2, "stand_in.py", program, *SMALL, "--algorithm", "sprint", "--cuda-aware", "--out", tmp_path / "r",
                  limit_s=50.0)
    assert done.code == 1 and not (tmp_path / "r").exists()
    lines = [line for line in done.err.splitlines() if line.startswith("sprint:")]
    assert len(lines) == 1 and "Traceback" not in done.err
    assert ("rank 1 (host " in lines[0]) == (where == "rank 1")
    assert "in a child process, got its death by SIGSEGV; use an MPI built with CUDA" in lines[0]
