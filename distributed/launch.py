"""What the launcher says about this process, and how an error of one process ends the whole job."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from typing import NoReturn

from .ranks import AgreedError, Comm, Stalled, StartError, label

# The first of these that is set says how many processes the launcher believes that it has started.
LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
# What launchers tell their processes, but for the user's own OMPI_MCA_ and OMPI_ALLOW_.
TOLD = ("OMPI_COMM_", "PMIX_", "PMI_", "PRTE_", "MV2_COMM_", "HYDRA_", "HYDI_", "SLURM_")

FORWARD_S = 0.3  # the launcher may drop what it has not yet forwarded when the job is aborted


def launched() -> tuple[str, int] | None:
    """Return the launcher's variable and its number of processes, or None if there was no launcher."""
    for name in LAUNCHERS:
        if os.environ.get(name, "").isdigit():
            return name, int(os.environ[name])
    return None


def outside() -> dict[str, str]:
    """The environment of a child that may start an MPI of its own: in no job that this process is in."""
    return {name: value for name, value in os.environ.items() if not name.startswith(TOLD)}


@contextlib.contextmanager
def guard(comm: Comm | None = None) -> Iterator[None]:
    """Make an error of one rank the end of all: its traceback, then abort, unless all agreed on the end.

    Without `comm`, for what runs before open_comm(): MPI is started only to abort the ranks that wait in it.
    """
    try:
        yield
    except BaseException as error:
        finished = isinstance(error, SystemExit) and not error.code
        if comm:
            comm.exit_code = 0 if finished else getattr(error, "exit_code", 1)
        alone = comm.size == 1 if comm else (launched() or ("", 1))[1] == 1
        if finished or alone:
            raise
        if comm and comm.ended:
            if comm.rank and isinstance(error, AgreedError):
                raise SystemExit(comm.exit_code) from None  # rank 0 prints the line
            raise
        end_job(comm, error)


def end_job(comm: Comm | None, error: BaseException) -> NoReturn:
    """Say what failed, and end all ranks."""
    from .comm import abort_world

    _report(comm, error)
    time.sleep(FORWARD_S)
    abort_world(1)


def leave(code: int) -> NoReturn:
    """End this process of an Open MPI job with a failure, and the job with it where this process has not joined it yet.

    Open MPI 5.0.11's mpirun, if only the exit code tells it while other ranks start MPI, may miss it and hang
    (seen in 1 of 600 starts); an abort through MPI does not get lost.
    """
    if os.environ["OMPI_COMM_WORLD_SIZE"] != "1" and "mpi4py.MPI" not in sys.modules:
        from .comm import abort_world

        time.sleep(FORWARD_S)
        abort_world(code)
    sys.exit(code)


def _report(comm: Comm | None, error: BaseException) -> None:
    """Print what failed, once: a worker's error has been told by its own thread, before the others' messages."""
    if getattr(error, "told", False):
        return
    if isinstance(error, Stalled):
        print(f"sprint: {error}", file=sys.stderr, flush=True)
        return
    rank = next((os.environ[name] for name in RANKS if name in os.environ), "?")
    who = label(comm) if comm else f"rank {rank} (host {socket.gethostname()})"
    story = f"{error}\n" if isinstance(error, StartError) else f"failed:\n{traceback.format_exc()}"
    print(f"sprint: {who}: {story}", file=sys.stderr, end="", flush=True)
