"""Who is there, and how flat vectors are summed: MPI behind one small class, and the same class without MPI.

The only file that imports mpi4py. Every collective is a buffer collective on a duplicated communicator; while
threads run, one of them is the only caller. The exceptions are the abort of a rank in trouble, and the signs of life
on a communicator of their own: that is why MPI_THREAD_MULTIPLE is asked for.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import faulthandler
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from .launch import FORWARD_S, launched
from .pulse import RANKS, Pulse
from .ranks import Comm, RankFailed, Single, StartError, flat, flush, label, plural, slice_of

NAME_BYTES = 64
SPIN_S = 500e-6  # small sums are done by then
LEAVE_S = 60.0  # how long a checkpoint of another rank may take at the end
DETECT_S = 2.0  # how long the death that an error came from may take to be known


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


class Mpi:
    """The ranks of MPI_COMM_WORLD, on a duplicated communicator whose errors come back as exceptions."""

    def __init__(self, variable: str, expected: int) -> None:
        self._mpi = mpi = _import_mpi(variable, expected)
        world = mpi.COMM_WORLD
        _check_launcher(variable, expected, world.size)
        _check_thread_level(mpi)
        self._comm, self._signs = world.Dup(), world.Dup()
        self._signs.Set_errhandler(mpi.ERRORS_RETURN)
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        self._world, self.ended, self.exit_code = world, False, 0
        atexit.register(self._leave)
        self._lost = {mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING, mpi.ERR_REVOKED}
        # Open MPI's mpirun --with-ft ulfm sets this; without it the launcher ends everybody itself.
        self._ulfm = os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112
        node = world.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = node.rank, node.size
        node.Free()
        self.pulse = Pulse("main")
        self._beating, self._beaten, self._sign = threading.Lock(), 0.0, np.zeros(1)
        self._heard = dict.fromkeys(range(world.size), (time.monotonic(), 0.0))
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

    def _waiting(self, op: str) -> contextlib.AbstractContextManager[None]:
        """Let the watch know what the main thread waits in; the update thread has a pulse of its own."""
        in_main = threading.current_thread() is threading.main_thread()
        return self.pulse.within(op, RANKS) if in_main else contextlib.nullcontext()

    @contextlib.contextmanager
    def _errors(self, op: str) -> Iterator[None]:
        try:
            with self._waiting(op):
                yield
        except self._mpi.Exception as error:
            died = error.Get_error_class() in self._lost or (self._ulfm and self._somebody_died())
            kind = RankFailed if died else RuntimeError
            raise kind(f"{op}: {error} on rank {self._world.rank} (host {socket.gethostname()})") from error

    def _somebody_died(self) -> bool:
        """Tell a death behind another error: Open MPI 5.0.11's Alltoallv then also says MPI_ERR_OTHER."""
        end = time.monotonic() + DETECT_S
        while time.monotonic() < end:
            if self._comm.Is_revoked() or self._comm.Get_failed().size:
                return True
            time.sleep(0.01)
        return False

    def allreduce(self, send: np.ndarray, recv: np.ndarray) -> None:
        """Sum `send` over the ranks into `recv`, both (n,) float32; spin for SPIN_S, then sleep. Raises RankFailed.

        A blocking Allreduce spins to its end: where workers and update threads share the cores, it takes the
        cores from those it waits for (2 ranks x 2 workers on 2 cores: 27 ms, and 4 ms like this).
        """
        flat("allreduce", send, np.float32)
        flat("allreduce", recv, np.float32)
        with self._errors("allreduce"):
            self._wait(self._comm.Iallreduce(send, recv), SPIN_S)

    def ordered_allreduce(self, send: np.ndarray, recv: np.ndarray) -> None:
        """Sum like allreduce, but ((r0 + r1) + r2) + ... for every element: what replay can repeat bit for bit.

        Each rank receives its slice of everybody's `send`, adds the slices in rank order, and all gather.
        Allgather with padding, because Open MPI 5.0.11's Allgatherv reports success and writes nothing when
        a rank has died (3 and 4 ranks, more than half of the kills).
        """
        n, size = flat("allreduce", send, np.float32).size, self.size
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

    def device_allreduce(self, send: Any, recv: Any) -> None:
        """Sum `send` over the ranks into `recv`, both (n,) float32 arrays of a device with no work left on them.

        Blocking, after a meet(): Open MPI's nonblocking reductions do not take device memory. Raises RankFailed.
        """
        with self._errors("allreduce"):
            self._comm.Allreduce(send, recv)

    def meet(self, values: np.ndarray) -> None:
        """Sum the few float64 `values` (k,) over the ranks, in place; sleep, not spin, until all are there.

        Raises RankFailed.
        """
        count = flat("meet", values, np.float64).size
        if self._meeting.size != count + 1:
            self._meeting = np.empty(count + 1, np.float64)
        self._meeting[:count], self._meeting[count] = values, 1.0
        with self._errors("meet"):
            self._wait(self._comm.Iallreduce(self._mpi.IN_PLACE, self._meeting))
        self._complete("meet", self._meeting[count] == self.size)
        values[:] = self._meeting[:count]

    def _wait(self, request: Any, spin_s: float = 50e-6) -> None:
        began = time.monotonic()
        while not request.Test():
            waited = time.monotonic() - began
            if waited > spin_s:
                time.sleep(min(1e-3, 0.1 * waited))

    def _complete(self, op: str, complete: bool) -> None:
        """Take a result with a hole in it for what it is: the library's success after a death."""
        if not complete:
            raise RankFailed(f"{op}: not all ranks are in the result on {label(self)}")

    def beat(self, every_s: float, waited_s: float) -> None:
        """Tell all others that this rank lives and has waited for them for `waited_s`, and hear the same of them.

        Any thread may call it, as often as it likes: it does so every `every_s` seconds. The dead are passed over.
        """
        with self._beating:
            now = time.monotonic()
            if now < self._beaten + every_s:
                return
            self._beaten, self._sign[0] = now, waited_s
            for other in self.ids:
                if other != self._world.rank:
                    with contextlib.suppress(self._mpi.Exception):
                        self._exchange_signs(other, now)

    def _exchange_signs(self, other: int, now: float) -> None:
        self._signs.Isend(self._sign, other).Free()
        sign = np.empty(1)
        while self._signs.Iprobe(other):
            self._signs.Recv(sign, other)
            self._heard[other] = (now, float(sign[0]))

    def heard(self) -> list[tuple[float, float]]:
        """Of each rank: seconds since its last sign of life was heard, and for how long it had waited then."""
        return [(time.monotonic() - at, waited_s) for at, waited_s in (self._heard[i] for i in self.ids)]

    def gather_all(self, values: list[float]) -> np.ndarray:
        """Return everybody's `values` as (size, k) float64. Raises RankFailed."""
        every = np.full((self.size, len(values)), np.nan)
        with self._errors("gather_all"):
            self._comm.Allgather(np.array(values, np.float64), every)
        self._complete("gather_all", not np.isnan(every).any())
        return every

    def first(self, count: int) -> Mpi | None:
        """Return the first `count` ranks as a group of their own, None on the others; a collective of all."""
        with self._errors("first"):
            part = self._comm.Split(0 if self.rank < count else self._mpi.UNDEFINED, self.rank)
        if part == self._mpi.COMM_NULL:
            return None
        part.Set_errhandler(self._mpi.ERRORS_RETURN)
        group = copy.copy(self)
        group._comm = part
        group._read_members(self._world.rank)
        return group

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Fill the flat float32 `array` (n,) with the one of `root`. Raises RankFailed."""
        with self._errors("broadcast"):
            self._comm.Bcast(flat("broadcast", array, np.float32), root)

    def agree(self, ok: bool) -> bool:
        """Return whether all living ranks said `ok`: the same answer everywhere, even while ranks die."""
        if not self._ulfm:
            return bool(self.gather_all([float(ok)]).all())
        while True:
            try:
                with self._waiting("agree"):
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

    def close(self) -> None:
        """Free the communicator; MPI ends with the interpreter. Under ULFM, where the dead cannot come, nothing."""
        if not self._ulfm:
            self._comm.Free()
            self._signs.Free()

    def _leave(self) -> None:
        """End the process without MPI_Finalize under ULFM: its fence may wait for the dead for ever.

        Seen with Open MPI 5.0.11 (1 run of 6 on two ranks, and for ranks that die in MPI_Finalize itself);
        mpirun --with-ft ulfm takes such an end as normal and returns the exit code, but one that is not 0 makes it
        kill the others: they come here first, with all that they have to say and to save.
        """
        if self._ulfm:
            flush()
            if self.exit_code and self.ended:
                self._gather_to_leave()
            os._exit(self.exit_code)

    def _gather_to_leave(self) -> None:
        deadline = time.monotonic() + LEAVE_S
        with contextlib.suppress(self._mpi.Exception):  # of the dead
            request = self._comm.Ibarrier()
            while not request.Test() and time.monotonic() < deadline:
                time.sleep(0.01)
        time.sleep(FORWARD_S)


def abort_world(code: int) -> NoReturn:
    """End all ranks of the job with `code`; this process ends within 5 s even if MPI hangs."""
    flush()
    timer = threading.Timer(5.0, os._exit, (code,))
    timer.daemon = True
    timer.start()
    with contextlib.suppress(ImportError):
        from mpi4py import MPI
        MPI.COMM_WORLD.Abort(code)
    os._exit(code)


def _import_mpi(variable: str, expected: int) -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise StartError(f"start: {variable}={expected} but mpi4py cannot be imported ({error}); install "
                         f"sprint-cnn[mpi], or unset {variable}") from error
    return MPI


def _check_launcher(variable: str, expected: int, size: int) -> None:
    if size != expected:
        raise StartError(f"start: the launcher says {variable}={expected}, MPI says "
                         f"{plural(size, 'rank')}: mpi4py was built for another MPI than this mpirun's, or the "
                         f"command was not started by it; use the mpirun of the MPI of mpi4py, or unset {variable}")


def _check_thread_level(mpi: Any) -> None:
    names = {mpi.THREAD_SINGLE: "single", mpi.THREAD_FUNNELED: "funneled", mpi.THREAD_SERIALIZED: "serialized"}
    level = mpi.Query_thread()
    if level < mpi.THREAD_MULTIPLE:
        raise StartError(f"start: expected MPI thread level multiple, got {names[level]}: the update thread is in "
                         "a collective while another thread may have to abort; unset MPI4PY_RC_THREAD_LEVEL, "
                         "or use an MPI that gives it")
