"""Who is there, and how flat vectors are summed: MPI behind one small class, and the same class without MPI.

The only file that imports mpi4py. Every collective is a buffer collective on a duplicated communicator; while
threads run, one of them is the only caller (apart from abort, which is why MPI_THREAD_MULTIPLE is asked for).
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

import numpy as np

# The first of these that is set says how many processes the launcher believes that it has started.
LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
NAME_BYTES = 64
ROLL_CALL_TAG = 7
ROLL_CALL_S = 1.5


class RankFailed(RuntimeError):
    """A rank of this job has died, or another rank said so first: shrink, or stop."""


class AgreedError(RuntimeError):
    """Raised after the same update on every rank, so that no rank has to be aborted."""


class StartError(RuntimeError):
    """This rank cannot take part in the job; the message is the whole story."""


class Comm(Protocol):
    """The ranks of one job. `ids` are the ranks at the start: names that stay when the job shrinks."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    ids: list[int]
    hosts: list[str]
    can_shrink: bool
    exit_code: int  # of this process, as guard() knows it
    ended: bool  # all ranks have agreed on the end: an error is no reason for an abort any more

    def allreduce(self, send: np.ndarray, recv: np.ndarray) -> None: ...
    def ordered_allreduce(self, send: np.ndarray, recv: np.ndarray) -> None: ...
    def meet(self, values: np.ndarray, limit_s: float) -> None: ...
    def gather_all(self, values: list[float]) -> np.ndarray: ...
    def broadcast(self, array: np.ndarray, root: int) -> None: ...
    def agree(self, ok: bool) -> bool: ...
    def shrink(self, announce: bool = True) -> None: ...
    def abort(self, code: int) -> NoReturn: ...
    def close(self) -> None: ...


def label(comm: Comm, rank: int | None = None) -> str:
    """Name a rank in a message: "rank 1 (host node7)", by its number at the start."""
    rank = comm.rank if rank is None else rank
    return f"rank {comm.ids[rank]} (host {comm.hosts[rank]})"


def launched() -> tuple[str, int] | None:
    """Return the launcher's variable and its number of processes, or None if there was no launcher."""
    for name in LAUNCHERS:
        if os.environ.get(name, "").isdigit():
            return name, int(os.environ[name])
    return None


def open_comm(limit_s: float = 60.0) -> Comm:
    """Join the job that the launcher started, or be the only rank where there was no launcher.

    A launcher of one process needs no MPI. Raises StartError when mpi4py is missing, when the launcher belongs
    to another MPI (both numbers named), or when the thread level is too low. If MPI does not start in
    `limit_s` seconds, the process ends with its stacks on stderr: under ULFM a rank that died before
    MPI_Init would leave the others there for ever.
    """
    launcher = launched()
    if launcher is None or launcher[1] == 1:
        return Single()
    faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        return Mpi(*launcher)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _flat(op: str, array: np.ndarray, dtype: Any) -> np.ndarray:
    if array.dtype != dtype:
        raise TypeError(f"{op}: expected {np.dtype(dtype)}, got {array.dtype}")
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{op}: expected one flat contiguous buffer, got shape {array.shape}, "
                         f"strides {array.strides}")
    return array


class Single:
    """One process: the same interface, no MPI anywhere."""

    can_shrink = False

    def __init__(self) -> None:
        self.rank, self.size, self.local_rank, self.local_size = 0, 1, 0, 1
        self.ids, self.hosts = [0], [socket.gethostname()]
        self.ended, self.exit_code = False, 0

    def allreduce(self, send: np.ndarray, recv: np.ndarray) -> None:
        """Copy `send` to `recv`, both (n,) float32: the sum over one rank."""
        np.copyto(_flat("allreduce", recv, np.float32), _flat("allreduce", send, np.float32))

    ordered_allreduce = allreduce

    def meet(self, values: np.ndarray, limit_s: float) -> None:
        """Leave `values` as they are: nobody to wait for."""

    def gather_all(self, values: list[float]) -> np.ndarray:
        """Return `values` as (1, k) float64."""
        return np.array([values], np.float64)

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Leave `array` as it is."""

    def agree(self, ok: bool) -> bool:
        """Return `ok`."""
        return ok

    def shrink(self, announce: bool = True) -> NoReturn:
        """Refuse: the only rank cannot outlive itself."""
        raise RuntimeError("shrink: expected 2 or more ranks, got 1")

    def abort(self, code: int) -> NoReturn:
        """End this process now."""
        _flush()
        os._exit(code)

    def close(self) -> None:
        """Nothing to release."""


class Mpi:
    """The ranks of MPI_COMM_WORLD, on a duplicated communicator whose errors come back as exceptions."""

    def __init__(self, variable: str, expected: int) -> None:
        self._mpi = mpi = _import_mpi(variable, expected)
        world = mpi.COMM_WORLD
        _check_launcher(variable, expected, world.size)
        _check_thread_level(mpi)
        self._comm = world.Dup()
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        self._world, self.ended, self.exit_code = world, False, 0
        atexit.register(self._leave)
        self._lost = {mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING, mpi.ERR_REVOKED}
        # Open MPI's mpirun --with-ft ulfm sets this; without it the launcher ends everybody itself.
        self._ulfm = os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112
        node = world.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = node.rank, node.size
        node.Free()
        self._scratch = np.empty((2, 0), np.float32)
        self._meeting = np.empty(0, np.float64)
        self._read_members(world.rank)

    def _read_members(self, own_id: int) -> None:
        ids = np.empty(self._comm.size, np.int64)
        names = np.zeros((self._comm.size, NAME_BYTES), np.uint8)
        name = socket.gethostname().encode()[:NAME_BYTES]
        own = np.frombuffer(name.ljust(NAME_BYTES, b"\0"), np.uint8)
        with self._errors("gather_all"):
            self._comm.Allgather(np.array([own_id], np.int64), ids)
            self._comm.Allgather(own, names)
        self.rank, self.size = self._comm.rank, self._comm.size
        self.ids = [int(i) for i in ids]
        self.hosts = [bytes(row).rstrip(b"\0").decode() for row in names]
        self.can_shrink = self._ulfm and self.size > 1

    @contextlib.contextmanager
    def _errors(self, op: str) -> Iterator[None]:
        try:
            yield
        except self._mpi.Exception as error:
            kind = RankFailed if error.Get_error_class() in self._lost else RuntimeError
            raise kind(f"{op}: {error} on rank {self._world.rank} (host {socket.gethostname()})") from error

    def allreduce(self, send: np.ndarray, recv: np.ndarray) -> None:
        """Sum `send` over the ranks into `recv`, both (n,) float32. Raises RankFailed."""
        _flat("allreduce", send, np.float32)
        _flat("allreduce", recv, np.float32)
        with self._errors("allreduce"):
            self._comm.Allreduce(send, recv)

    def ordered_allreduce(self, send: np.ndarray, recv: np.ndarray) -> None:
        """Sum like allreduce, but ((r0 + r1) + r2) + ... for every element: what replay can repeat bit for bit.

        Each rank receives its slice of everybody's `send`, adds the slices in rank order, and all gather.
        Allgather with padding, because Open MPI 5.0.11's Allgatherv reports success and writes nothing when
        a rank has died (3 and 4 ranks, more than half of the kills).
        """
        n, size = _flat("allreduce", send, np.float32).size, self.size
        pieces = [slice_of(n, rank, size) for rank in range(size)]
        counts, starts = [p.stop - p.start for p in pieces], [p.start for p in pieces]
        widest, width = max(counts), counts[self.rank]
        if self._scratch.shape != (2, size * widest):
            self._scratch = np.zeros((2, size * widest), np.float32)
        rows, gathered = self._scratch[0, :size * width].reshape(size, width), self._scratch[1]
        mine, everywhere = self._scratch[0, :widest], ([width] * size, [width * rank for rank in range(size)])
        with self._errors("allreduce"):
            self._comm.Alltoallv([send, (counts, starts), self._mpi.FLOAT],
                                 [self._scratch[0], everywhere, self._mpi.FLOAT])
            for row in rows[1:]:
                np.add(rows[0], row, out=rows[0])
            self._comm.Allgather(mine, gathered)
        for rank, piece in enumerate(pieces):
            recv[piece] = gathered[rank * widest:rank * widest + counts[rank]]

    def meet(self, values: np.ndarray, limit_s: float) -> None:
        """Sum the few float64 `values` (k,) over the ranks, in place; sleep, not spin, until all are there.

        Raises RankFailed; RuntimeError naming the missing ranks after `limit_s` seconds (0: no limit).
        """
        count = _flat("meet", values, np.float64).size
        if self._meeting.size != count + 1:
            self._meeting = np.empty(count + 1, np.float64)
        self._meeting[:count], self._meeting[count] = values, 1.0
        with self._errors("meet"):
            self._wait(self._comm.Iallreduce(self._mpi.IN_PLACE, self._meeting), limit_s)
        self._complete("meet", self._meeting[count] == self.size)
        values[:] = self._meeting[:count]

    def _wait(self, request: Any, limit_s: float) -> None:
        began = time.monotonic()
        while not request.Test():
            waited = time.monotonic() - began
            if limit_s and waited > limit_s:
                raise RuntimeError(f"meet: {self._missing()} did not come for {waited:.1f} s")
            if waited > 50e-6:
                time.sleep(min(1e-3, 0.1 * waited))

    def _complete(self, op: str, complete: bool) -> None:
        """Take a result with a hole in it for what it is: the library's success after a death."""
        if not complete:
            raise RankFailed(f"{op}: not all ranks are in the result on {label(self)}")

    def _missing(self) -> str:
        """Name the ranks that do not answer a roll call: those that are not waiting in meet()."""
        here, byte = {self.rank}, np.zeros(1, np.uint8)
        for other in range(self.size):
            if other != self.rank:
                self._comm.Isend(byte, other, ROLL_CALL_TAG)
        status, end = self._mpi.Status(), time.monotonic() + ROLL_CALL_S
        while time.monotonic() < end and len(here) < self.size:
            if self._comm.Iprobe(self._mpi.ANY_SOURCE, ROLL_CALL_TAG, status):
                self._comm.Recv(np.empty(1, np.uint8), status.source, ROLL_CALL_TAG)
                here.add(status.source)
            time.sleep(1e-3)
        missing = [label(self, rank) for rank in range(self.size) if rank not in here]
        return ", ".join(missing) or "the network"

    def gather_all(self, values: list[float]) -> np.ndarray:
        """Return everybody's `values` as (size, k) float64. Raises RankFailed."""
        every = np.full((self.size, len(values)), np.nan)
        with self._errors("gather_all"):
            self._comm.Allgather(np.array(values, np.float64), every)
        self._complete("gather_all", not np.isnan(every).any())
        return every

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Fill the flat float32 `array` (n,) with the one of `root`. Raises RankFailed."""
        with self._errors("broadcast"):
            self._comm.Bcast(_flat("broadcast", array, np.float32), root)

    def agree(self, ok: bool) -> bool:
        """Return whether all living ranks said `ok`: the same answer everywhere, even while ranks die."""
        if not self._ulfm:
            return bool(self.gather_all([float(ok)]).all())
        while True:
            try:
                return bool(self._comm.Agree(int(ok)))
            except self._mpi.Exception as error:
                if error.Get_error_class() not in self._lost:
                    raise RuntimeError(f"agree: {error} on {label(self)}") from error
                self._comm.Ack_failed()

    def shrink(self, announce: bool = True) -> None:
        """Go on with the living ranks only; `announce`: make the others' collectives fail first.

        All living ranks must come; those that have nothing to recover are called by agree(). The old
        communicator is left as it is, because freeing it is a collective over the dead as well.
        """
        if announce:
            self._comm.Revoke()
            self.agree(False)
        with self._errors("shrink"):
            self._comm = self._comm.Shrink()
            self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        self._read_members(self._world.rank)

    def abort(self, code: int) -> NoReturn:
        """End all ranks of the job."""
        abort_world(code)

    def close(self) -> None:
        """Free the communicator; MPI ends with the interpreter. Under ULFM, where the dead cannot come, nothing."""
        if not self._ulfm:
            self._comm.Free()

    def _leave(self) -> None:
        """End the process without MPI_Finalize under ULFM: its fence may wait for the dead for ever.

        Seen with Open MPI 5.0.11 (1 run of 6 on two ranks, and for ranks that die in MPI_Finalize itself);
        mpirun --with-ft ulfm takes such an end as normal and returns the exit code.
        """
        if self._ulfm:
            _flush()
            os._exit(self.exit_code)


def slice_of(n: int, index: int, count: int) -> slice:
    """Return the index-th of `count` nearly equal slices of n elements: (x)_n of Algorithm 2."""
    return slice(n * index // count, n * (index + 1) // count)


def agree_signature(comm: Comm, config_hash: str, n_params: int, version: int) -> None:
    """Compare what all ranks must share before the first collective on weights.

    Raises AgreedError naming the first rank that differs from rank 0, and how.
    """
    digits = int(config_hash[:12], 16)  # 48 bits: exact in float64
    rows = comm.gather_all([float(n_params), float(version), float(digits)])
    for rank, row in enumerate(rows):
        for name, mine, theirs in zip(("parameters", "version", "configuration"), rows[0], row, strict=True):
            if mine != theirs:
                shown = [f"{int(x):012x}" if name == "configuration" else f"{int(x)}" for x in (mine, theirs)]
                comm.ended = True
                raise AgreedError(f"start: expected the same {name} on all ranks, got {shown[0]} on "
                                  f"{label(comm, 0)} and {shown[1]} on {label(comm, rank)}")


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
                raise SystemExit(1) from None  # rank 0 prints the line
            raise
        _report(comm, error)
        abort_world(1)


def _report(comm: Comm | None, error: BaseException) -> None:
    rank = next((os.environ[name] for name in RANKS if name in os.environ), "?")
    who = label(comm) if comm else f"rank {rank} (host {socket.gethostname()})"
    story = f"{error}\n" if isinstance(error, StartError) else f"failed:\n{traceback.format_exc()}"
    print(f"sprint: {who}: {story}", file=sys.stderr, end="", flush=True)


def abort_world(code: int) -> NoReturn:
    """End all ranks of the job with `code`; this process ends within 5 s even if MPI hangs."""
    _flush()
    timer = threading.Timer(5.0, os._exit, (code,))
    timer.daemon = True
    timer.start()
    with contextlib.suppress(ImportError):
        from mpi4py import MPI
        MPI.COMM_WORLD.Abort(code)
    os._exit(code)


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()


def _import_mpi(variable: str, expected: int) -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise StartError(f"start: {variable}={expected} but mpi4py cannot be imported ({error}); install "
                         f"sprint-cnn[mpi], or unset {variable}") from error
    return MPI


def _check_launcher(variable: str, expected: int, size: int) -> None:
    if size != expected:
        raise StartError(f"start: the launcher says {variable}={expected}, MPI says {size} "
                         f"rank{'s' * (size != 1)}: mpi4py was built for another MPI than this mpirun's, or the "
                         f"command was not started by it; use the mpirun of the MPI of mpi4py, or unset {variable}")


def _check_thread_level(mpi: Any) -> None:
    names = {mpi.THREAD_SINGLE: "single", mpi.THREAD_FUNNELED: "funneled", mpi.THREAD_SERIALIZED: "serialized"}
    level = mpi.Query_thread()
    if level < mpi.THREAD_MULTIPLE:
        raise StartError(f"start: expected MPI thread level multiple, got {names[level]}: the update thread is in "
                         "a collective while another thread may have to abort; unset MPI4PY_RC_THREAD_LEVEL, "
                         "or use an MPI that gives it")
