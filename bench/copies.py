"""Plain copies of the host with as many threads as a device has: what memory-bound kernels are compared with."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

WORTH_BYTES = 1 << 20  # of a chunk; less is copied before another thread is awake


def numpy_copy(threads: int, target: np.ndarray, source: Any) -> Callable[[], Any]:
    """A call that copies `source`, an array or a number, into `target` with one contiguous chunk a thread."""
    threads = max(1, min(threads, target.nbytes // WORTH_BYTES))
    if threads == 1:
        return lambda: np.copyto(target, source)
    targets = np.array_split(target.reshape(-1), threads)
    sources = np.array_split(source.reshape(-1), threads) if np.ndim(source) else [source] * threads
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(np.copyto, targets, sources))
