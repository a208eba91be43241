"""Sums over the GPUs of several processes by NCCL, through CuPy; imported inside a function, for it may be absent."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import cuda
from .pinned import Active

_CURE = "python -m cupyx.tools.install_library --library nccl --cuda 12.x, or the libnccl.so.2 of your system"


def missing() -> str | None:
    """Why NCCL cannot be used, with the cure, in one line; None when it can."""
    if reason := cuda.missing():
        return reason
    try:
        _nccl().get_version()  # loads the library
    except Exception as error:  # whatever a broken installation raises
        return f"CuPy finds no NCCL ({cuda.first_line(error)}); {_CURE}"
    return None


def _nccl() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's several lines; missing() has one
        module = importlib.import_module("cupy.cuda.nccl")
    if not module.available:
        raise ImportError("no libnccl")
    return module


def new_identity() -> str:
    """What a new group is known by: made by one rank, to be given to Communicator on all of them."""
    return " ".join(map(str, _nccl().get_unique_id()))


class Communicator:
    """One GPU's place in a group of `size`. Made on all ranks at once, each with a GPU of its own.

    Raises RuntimeError.
    """

    def __init__(self, active: Active, stream: Any, size: int, identity: str, rank: int) -> None:
        self._nccl, self._active, self._stream = _nccl(), active, stream
        with self._errors("join"):
            self._group = self._nccl.NcclCommunicator(size, tuple(map(int, identity.split())), rank)

    @contextmanager
    def _errors(self, op: str) -> Iterator[None]:
        with self._active(f"nccl {op}"):
            try:
                yield
            except self._nccl.NcclError as error:
                raise RuntimeError(f"nccl {op}: {cuda.first_line(error)}") from error

    def allreduce(self, send: Any, recv: Any) -> None:
        """Queue recv = sum of `send` over the ranks, both (n,) float32 of this GPU, on the device's stream."""
        with self._errors("allreduce"):
            self._group.allReduce(send.data.ptr, recv.data.ptr, send.size, self._nccl.NCCL_FLOAT32,
                                  self._nccl.NCCL_SUM, self._stream.ptr)

    def close(self) -> None:
        """Leave the group; all ranks do."""
        with self._errors("leave"):
            self._group.destroy()
