"""The ranks of one job: what every communicator offers, the one for a single process, and names for messages."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Any, NoReturn, Protocol

import numpy as np

from .pulse import Pulse


class RankFailed(RuntimeError):
    """A rank of this job has died, or another rank said so first: shrink, or stop."""


class AgreedError(RuntimeError):
    """Raised after the same update on every rank, so that no rank has to be aborted."""


class StartError(RuntimeError):
    """This rank cannot take part in the job; the message is the whole story."""


class Stalled(RuntimeError):
    """This rank, or one that it waits for, does not get on; the message is the whole story, with names."""


class Comm(Protocol):
    """The ranks of one job. `ids` are the ranks at the start: names that stay when the job shrinks."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    ids: list[int]
    hosts: list[str]
    can_shrink: bool
    pulse: Pulse  # of the main thread
    exit_code: int  # of this process, as guard() knows it
    ended: bool  # all ranks have agreed on the end: an error is no reason for an abort any more

    def allreduce(self, send: np.ndarray, recv: np.ndarray) -> None: ...
    def ordered_allreduce(self, send: np.ndarray, recv: np.ndarray) -> None: ...
    def device_allreduce(self, send: Any, recv: Any) -> None: ...
    def meet(self, values: np.ndarray) -> None: ...
    def beat(self, every_s: float, waited_s: float) -> None: ...
    def heard(self) -> list[tuple[float, float]]: ...
    def gather_all(self, values: list[float]) -> np.ndarray: ...
    def first(self, count: int) -> Comm | None: ...
    def broadcast(self, array: np.ndarray, root: int) -> None: ...
    def agree(self, ok: bool) -> bool: ...
    def shrink(self, announce: bool = True) -> None: ...
    def close(self) -> None: ...


def label(comm: Comm, rank: int | None = None) -> str:
    """Name a rank in a message: "rank 1 (host node7)", by its number at the start."""
    rank = comm.rank if rank is None else rank
    return f"rank {comm.ids[rank]} (host {comm.hosts[rank]})"


def plural(number: int, noun: str) -> str:
    """Count in a message: "1 rank", "2 ranks"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def slice_of(n: int, index: int, count: int) -> slice:
    """Return the index-th of `count` nearly equal slices of n elements: (x)_n of Algorithm 2."""
    return slice(n * index // count, n * (index + 1) // count)


def flat(op: str, array: np.ndarray, dtype: Any) -> np.ndarray:
    """Return `array` if it is one flat contiguous buffer of `dtype`. Raises TypeError, ValueError."""
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
        self.ended, self.exit_code, self.pulse = False, 0, Pulse("main")

    def allreduce(self, send: np.ndarray, recv: np.ndarray) -> None:
        """Copy `send` to `recv`, both (n,) float32: the sum over one rank."""
        np.copyto(flat("allreduce", recv, np.float32), flat("allreduce", send, np.float32))

    ordered_allreduce = allreduce

    def device_allreduce(self, send: Any, recv: Any) -> NoReturn:
        """Refuse: there is no MPI that could take device memory."""
        raise RuntimeError("allreduce: expected 2 or more ranks for arrays of a device, got 1")

    def meet(self, values: np.ndarray) -> None:
        """Leave `values` as they are: nobody to wait for."""

    def beat(self, every_s: float, waited_s: float) -> None:
        """Tell nobody."""

    def heard(self) -> list[tuple[float, float]]:
        """Hear this rank only."""
        return [(0.0, 0.0)]

    def gather_all(self, values: list[float]) -> np.ndarray:
        """Return `values` as (1, k) float64."""
        return np.array([values], np.float64)

    def first(self, count: int) -> Single:
        """Return this rank: a group of one."""
        return self

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Leave `array` as it is."""

    def agree(self, ok: bool) -> bool:
        """Return `ok`."""
        return ok

    def shrink(self, announce: bool = True) -> NoReturn:
        """Refuse: the only rank cannot outlive itself."""
        raise RuntimeError("shrink: expected 2 or more ranks, got 1")

    def close(self) -> None:
        """Nothing to release."""


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


def flush() -> None:
    """Write out what is printed, before an end that skips the interpreter's own."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
