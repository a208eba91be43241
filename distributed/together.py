"""What the main threads of all ranks do together: fail together at the start, and share a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from ..engine.errors import UsageError
from .ranks import Comm, label

T = TypeVar("T")
ONE_LINE = (ValueError, RuntimeError, OSError)


def together(comm: Comm, work: Callable[[], T]) -> T:
    """Return work(), which has no collectives in it, if it succeeds on all ranks.

    Else all end, and the first rank on which it failed says why. Other ranks wait asleep.
    """
    error, result = None, None
    try:
        result = work()
    except Exception as caught:
        error = caught
    codes = np.zeros(comm.size)
    codes[comm.rank] = getattr(error, "exit_code", 1) if error else 0
    comm.meet(codes)
    failed = np.flatnonzero(codes)
    if failed.size:
        comm.ended = True
        if error is None or comm.rank != failed[0]:
            raise SystemExit(int(codes[failed[0]]))
        raise error if failed.size == comm.size else _located(comm, error)
    return result  # type: ignore[return-value]


def _located(comm: Comm, error: Exception) -> Exception:
    """The error with the rank in its message, as not all ranks have it."""
    if not isinstance(error, ONE_LINE):
        return error
    located = (UsageError if isinstance(error, UsageError) else RuntimeError)(f"{label(comm)}: {error}")
    located.__cause__ = error
    return located


def text_of_first(comm: Comm, text: str) -> str:
    """The `text` of rank 0, on every rank; a collective."""
    raw = np.frombuffer(text.encode(), np.uint8)
    array = np.zeros(int(comm.gather_all([float(raw.size)])[0, 0]), np.float32)
    if comm.rank == 0:
        array[:] = raw
    comm.broadcast(array, 0)
    return bytes(array.astype(np.uint8)).decode()
