"""Every way to make a plain copy on a device with all its threads: the best of them is what memory allows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..kernels import activation
from ..kernels.conv_shape import ConvShape
from ..kernels.device import Array, Device
from ..kernels.im2col import im2col

WORTH_BYTES = 1 << 20  # of a chunk; less is copied before another thread is awake
Copy = Callable[[], Any]


def copies(device: Device, target: Array, source: Array) -> dict[str, Copy]:
    """Calls by name, each of which copies source (n) into target (n), both float32 (relu: without negative values)."""
    line = ConvShape(1, 1, 1, source.size, 1, 1, 1)
    ways: dict[str, Copy] = {
        "relu copy": lambda: activation.relu(device, source, target),
        "im2col copy": lambda: im2col(device, source.reshape(line.x), target.reshape(1, -1), line)}
    if device.kind == "host":
        return {**ways, "NumPy copy": numpy_copy(device.threads, target, source)}
    return {**ways, "device copy": lambda: device.copy(target, source)}


def numpy_copy(threads: int, target: np.ndarray, source: Any) -> Copy:
    """A call that copies `source`, an array or a number, into `target` with one contiguous chunk a thread."""
    threads = max(1, min(threads, target.nbytes // WORTH_BYTES))
    if threads == 1:
        return lambda: np.copyto(target, source)
    targets = np.array_split(target.reshape(-1), threads)
    sources = np.array_split(source.reshape(-1), threads) if np.ndim(source) else [source] * threads
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(np.copyto, targets, sources))
