"""Seconds of single calls as they run within a gradient: what was just written is in the caches, all else is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..kernels import host_gemm
from ..kernels.conv import Conv
from ..kernels.conv_algorithm import Gradient
from ..kernels.device import Array, Device
from .needs import Product
from .op import Case
from .timing import Flush

Call = Callable[[], None]
PASSING_BYTES = 8 << 20  # twice so many pass through the caches from one use of an array to the next
LEAST_TIMES, MOST_TIMES = 4, 40
SHORT_S = 5e-4  # calls that take less are timed by the handful where the caches stay as they are
QUIET = 0.25  # quantile of the times that counts: another program on the machine only makes them longer
TILE = 1 << 16  # values that arrays are filled with, over and over: nobody waits for gigabytes of random numbers
TRANSPOSED = {"nn": (False, False), "nt": (False, True), "tn": (True, False)}


@dataclass
class Gauge:
    """Times calls on a device, about `seconds` each.

    A host device of one thread is timed by the clock of that thread: it works without a pause, so what it spends is
    what it takes, and other programs on the processor do not count. All others are timed by their own marks.
    """

    device: Device
    seconds: float
    _flush: Flush = field(init=False)

    def __post_init__(self) -> None:
        self._flush = Flush(self.device, PASSING_BYTES)

    def time(self, call: Call, hot: Array | None = None) -> float:
        """Seconds of one call. A first one is not counted.

        hot: the array that the call before has just written; everything else has left the caches then. None: all that
        the call touches was just there.
        """
        begin = time.perf_counter()
        once = max(elapsed(self.device, call), 1e-7)
        handful = 1 if hot is not None else max(1, round(SHORT_S / once))
        before = (lambda: None) if hot is None else partial(self._pass_by, hot, self.device.upload(hot))
        times: list[float] = []
        while len(times) < LEAST_TIMES or (len(times) < MOST_TIMES and time.perf_counter() - begin < self.seconds):
            before()
            times.append(elapsed(self.device, call, handful))
        return float(np.quantile(times, QUIET))

    def _pass_by(self, hot: Array, source: Array) -> None:
        self._flush()
        self.device.copy(hot, source)

    def case(self, case: Case) -> float:
        """Seconds of a case of the table, on arrays that were just there."""
        arrays = {name: filled(self.device, spec.shape, spec.dtype) for name, spec in case.specs.items()}
        return self.time(partial(case.bind(self.device), arrays))

    def product(self, product: Product) -> float:
        """Seconds of a GEMM path at the sizes asked for; where they are not quite to be had, scaled by flops."""
        call, hot = (_gemm if product.shape is None else _convolution)(self.device, product)
        return float(self.time(call, hot) * np.prod(product.sizes) / np.prod(product.actual))


def elapsed(device: Device, call: Call, times: int = 1) -> float:
    """Mean seconds of some calls, by the clock that suits the device."""
    if device.kind == "host" and device.threads == 1:
        begin = time.thread_time()
        for _ in range(times):
            call()
        return (time.thread_time() - begin) / times
    first = device.mark()
    for _ in range(times):
        call()
    return device.elapsed_ms(first, device.mark()) / 1e3 / times


def product_bytes(product: Product) -> float:
    """Bytes of the arrays of a call."""
    m, n, k = product.actual
    if product.shape is None:
        return 4 * (m * n + n * k + m * k)
    shape = product.shape
    return 4.0 * sum(np.prod(part, dtype=float) for part in (shape.x, shape.w, shape.y))


def filled(device: Device, shape: tuple[int, ...] | int, dtype: Any = np.float32) -> Array:
    """Array of a device: normal numbers over and over, or zeros where whole numbers index something."""
    if np.dtype(dtype) != np.float32:
        return device.zeros(shape, dtype)
    tile = np.random.default_rng(0).standard_normal(min(TILE, int(np.prod(shape))), np.float32)
    return device.upload(np.resize(tile, shape))


def _gemm(device: Device, product: Product) -> tuple[Call, Array]:
    """A plain GEMM by BLAS or by the host's own tiles, and the one of a and b that comes from the layer before."""
    (m, n, k), (name, ending) = (round(size) for size in product.sizes), product.path.split(".")
    ta, tb = TRANSPOSED[ending]
    a, b = filled(device, (k, m) if ta else (m, k)), filled(device, (n, k) if tb else (k, n))
    hot = a if tb else b  # dy of dw = dy x^T; x of y = w x, dy of dx = w^T dy
    if name == "tiles":
        workspace = device.empty(host_gemm.sgemm_workspace(m, n, k, device.threads), np.uint8)
        return partial(host_gemm.sgemm, device, a, b, device.empty((m, n)), workspace, trans_a=ta, trans_b=tb), hot
    return partial(device.sgemm, a, b, device.empty((m, n)), trans_a=ta, trans_b=tb), hot


def _convolution(device: Device, product: Product) -> tuple[Call, Array]:
    """A convolution with the ReLU and the pool that its algorithm takes in, and the array that was just written."""
    assert product.shape is not None and product.stage is not None
    shape, (name, direction) = product.shape, product.path.split(".")
    pool = min(product.stage.pool, shape.P, shape.Q)
    algorithm = Conv(device, shape, name, pool=pool).candidates[0]
    if not algorithm.fused:
        pool, algorithm = 1, Conv(device, shape, name).candidates[0]
    ends = algorithm.fused and product.stage.relu
    workspace = device.empty(-(-algorithm.workspace_bytes(direction) // 4))
    x, w, b = (filled(device, size) for size in (shape.x, shape.w, shape.K))
    y, dy = (filled(device, (shape.K, shape.N, shape.P // pool, shape.Q // pool)) for _ in range(2))
    arg = device.zeros(y.shape, np.uint8) if pool > 1 else None
    gradient = Gradient(dy, y if ends else None, arg)
    if direction == "forward":
        return partial(algorithm.forward, x, w, b, y, ends, workspace, arg), x
    if direction == "backward_data":
        return partial(algorithm.backward_data, gradient, w, device.empty(shape.x), workspace), dy
    dw, db = device.empty(shape.w), device.empty(shape.K)
    return partial(algorithm.backward_filter, x, gradient, dw, db, workspace), dy
