"""May the ranks sum in device memory? Asked before anything is written; of MPI in a child, for a wrong one crashes."""

from __future__ import annotations

import signal
import subprocess
import sys

from ..engine.config import TrainConfig
from ..engine.errors import UsageError
from ..kernels import cuda, nccl
from .launch import outside
from .layout import Place
from .pulse import LOCAL
from .ranks import Comm

LIMIT_S = 60.0  # CuPy and a CUDA context of its own take seconds, on a slow file system many
PROGRAM = """
import sys
import cupy
from mpi4py import MPI
cupy.cuda.Device(int(sys.argv[1])).use()
send = cupy.arange(1, 1001, dtype=cupy.float32)
recv = cupy.zeros_like(send)
cupy.cuda.get_current_stream().synchronize()
MPI.COMM_WORLD.Allreduce(send, recv)
sys.exit("a sum that is wrong" if (recv != send).any() else 0)
"""
_CURE = "use an MPI built with CUDA (Open MPI: ompi_info | grep cuda; pip's is not), or leave --cuda-aware out"


def check_transport(comm: Comm, config: TrainConfig, where: Place) -> None:
    """Let this rank sum as asked. Raises UsageError for what cannot go together, RuntimeError for what is not there."""
    name, device = config.transport, where.names[0]
    if name == "host":
        return
    if not device.startswith("cuda"):
        raise UsageError(f"{name}: expected cuda devices, got {device}")
    if reason := cuda.missing():
        raise RuntimeError(f"{device}: {reason}")
    _check_nccl(comm) if name == "nccl" else _check_mpi(comm, device)


def _check_nccl(comm: Comm) -> None:
    if comm.can_shrink:
        raise UsageError("nccl: expected mpirun without --with-ft ulfm, got it: after a death NCCL waits for ever")
    if reason := nccl.missing():
        raise RuntimeError(f"nccl: {reason}")


def _check_mpi(comm: Comm, device: str) -> None:
    if comm.size == 1:
        raise UsageError("cuda-aware: expected 2 or more ranks (mpirun -n N), got 1")
    with comm.pulse.within("try MPI in a child", LOCAL):  # which has a limit of its own
        outcome = ask_child(device.partition(":")[2])
    if outcome:
        raise RuntimeError(f"cuda-aware: expected MPI to sum 1,000 floats on {device} in a child process, "
                           f"got {outcome}; {_CURE}")


def ask_child(index: str) -> str | None:
    """What went wrong with PROGRAM on GPU `index`, in a process outside the job; None: nothing."""
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, index], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                             env=outside())
    try:
        _, said = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"no answer in {LIMIT_S:g} s"
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if child.returncode < 0:
        return f"its death by {signal.Signals(-child.returncode).name}"
    return (said.strip().splitlines() or [f"exit code {child.returncode}"])[-1] if child.returncode else None
