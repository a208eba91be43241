"""The host's BLAS: NumPy's own, called so that rows may be strided and each device's thread count is kept."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


@functools.cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


_current_threads: list[int] = []


def set_threads(threads: int) -> None:
    """Let BLAS use `threads` threads from the next call on: a setting of the whole process."""
    if _current_threads != [threads]:
        _current_threads[:] = [threads]
        for library in _controller().lib_controllers:
            library.set_num_threads(threads)


def describe() -> str:
    """Name, version and threads of the BLAS in use."""
    found = _controller().info()
    names = [f"{i['internal_api']} {i.get('version')} ({i['num_threads']} threads)" for i in found]
    return ", ".join(names) or "none found"


def sgemm(a: np.ndarray, b: np.ndarray, c: np.ndarray, trans_a: bool, trans_b: bool, alpha: float,
          beta: float, threads: int) -> None:
    """c = alpha op(a) op(b) + beta c for checked, non-empty arguments."""
    set_threads(threads)
    a, b = a.T if trans_a else a, b.T if trans_b else b
    if beta == 0:
        np.matmul(a, b, out=c)
        if alpha != 1:
            np.multiply(c, np.float32(alpha), out=c)
        return
    product = np.matmul(a, b)
    product *= np.float32(alpha)
    if beta != 1:
        np.multiply(c, np.float32(beta), out=c)
    c += product
