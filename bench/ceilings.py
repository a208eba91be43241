"""What this device can do at best, measured now: copy bandwidth with its threads, and the peak of its sgemm.

Measured by the wall clock around long work whose result is read back, not by the marks that time the kernels: a device
whose marks lie must not set its own ceilings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..kernels import reduce, update
from ..kernels.conv_shape import ConvShape
from ..kernels.device import Array, Device
from ..kernels.im2col import im2col
from .copies import copies, numpy_copy

CUDA_CACHE_BYTES = 128 << 20  # no GPU of today has a larger L2
HOST_CACHE_BYTES = 32 << 20  # where the system does not tell
CACHED_PARTS = (8, 64)  # of the cache, each array of a copy that stays there
PRODUCTS = {"host": (512, 1024), "cuda": (8192,)}  # m = n = k of the sgemm
LONG_S = {"host": 0.001, "cuda": 0.02}  # least time of one measurement; short ones find the gaps of a busy machine
ROUNDS = 15
MARGIN = 1.3  # by which a result may beat a ceiling before it is doubted
BUSY = 4.0  # by which no machine is ever too busy to reach its ceilings
Work = Callable[[], Any]


class MeasuringError(RuntimeError):
    """A time that cannot be: the bytes or the flops of the work need longer."""


@dataclass(frozen=True)
class Ceilings:
    """GB/s count bytes read plus bytes written (10^9), GFLOP/s two operations a multiply-accumulate.

    copy: the best plain copy of data beyond the caches with the device's threads, by copy_method; stream: the best of
    copying, reading, writing and both in place there (a copy also loads the lines that it overwrites); cached: the
    best of these on data that stay in the caches; cache_bytes: of the last level.
    """

    copy_gb_per_s: float
    copy_method: str
    stream_gb_per_s: float
    cached_gb_per_s: float
    sgemm_gflop_per_s: float
    cache_bytes: int
    threads: int

    def least_ms(self, bytes_moved: float, flops: float) -> float:
        """Milliseconds of a call that reaches its ceiling: the copy bandwidth, or sgemm's peak if that takes longer."""
        return max(bytes_moved / self.copy_gb_per_s, flops / self.sgemm_gflop_per_s) / 1e6

    def limit(self, bytes_moved: float, flops: float) -> str:
        """Which of the two it is: "memory" or "compute"."""
        return "memory" if bytes_moved / self.copy_gb_per_s >= flops / self.sgemm_gflop_per_s else "compute"

    def refuse(self, what: str, ms: float, bytes_moved: float, flops: float, margin: float = MARGIN) -> None:
        """Raise MeasuringError if `ms` is less than the bytes or the flops of the work allow, by a factor `margin`."""
        cached = bytes_moved < 2 * self.cache_bytes  # may stay where they are written
        bandwidth = max(self.stream_gb_per_s, self.cached_gb_per_s if cached else 0.0)
        floor = max(bytes_moved / bandwidth, flops / self.sgemm_gflop_per_s) / 1e6 / margin
        if ms < floor:
            raise MeasuringError(f"{what}: expected at least {floor:.4g} ms for {bytes_moved:,} bytes and {flops:,.0f} "
                                 f"flops, got {ms:.4g} ms: a measuring error")

    def raised(self, other: Ceilings) -> Ceilings:
        """The higher of each ceiling of two measurements: a busy machine can only make them too low."""
        better = other if other.copy_gb_per_s > self.copy_gb_per_s else self
        return replace(better, stream_gb_per_s=max(self.stream_gb_per_s, other.stream_gb_per_s),
                       cached_gb_per_s=max(self.cached_gb_per_s, other.cached_gb_per_s),
                       sgemm_gflop_per_s=max(self.sgemm_gflop_per_s, other.sgemm_gflop_per_s))

    def reached(self, ms: float, bytes_moved: float, flops: float) -> Ceilings:
        """At least what a call that took `ms` by the wall clock has reached."""
        bandwidth = bytes_moved / ms / 1e6
        return replace(self, stream_gb_per_s=max(self.stream_gb_per_s, bandwidth),
                       cached_gb_per_s=max(self.cached_gb_per_s, bandwidth),
                       sgemm_gflop_per_s=max(self.sgemm_gflop_per_s, flops / ms / 1e6))

    def plain(self) -> dict[str, Any]:
        """Fit for JSON."""
        return asdict(self)


def cache_bytes(device: Device) -> int:
    """Bytes of the last-level cache, or an upper bound for a GPU."""
    if device.kind == "cuda":
        return CUDA_CACHE_BYTES
    sizes = [text.read_text().strip() for text in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return max((int(size[:-1]) * factors[size[-1]] for size in sizes if size[-1:] in factors), default=HOST_CACHE_BYTES)


def measure_ceilings(device: Device, cache: int | None = None, product: int | None = None) -> Ceilings:
    """Measure them, which takes seconds. `cache` (bytes) and `product` (m = n = k) replace what the device has."""
    cache = cache_bytes(device) if cache is None else cache
    large = _bandwidths(device, 2 * cache)
    cached = max(value for part in CACHED_PARTS for value in _bandwidths(device, cache // part).values())
    copies = {name: value for name, value in large.items() if name.endswith("copy")}
    method = max(copies, key=lambda name: copies[name])
    peak = max(_sgemm_peak(device, size) for size in (PRODUCTS[device.kind] if product is None else (product,)))
    return Ceilings(copies[method], method, max(large.values()), cached, peak, cache, device.threads)


def _bandwidths(device: Device, array_bytes: int) -> dict[str, float]:
    """GB/s of every way to copy (names end in "copy"), read or write arrays of about `array_bytes`."""
    n = max(1024, array_bytes // 4)
    source, target, sums = device.zeros(n), device.zeros(n), device.empty(64)
    rows = source[: n // 64 * 64].reshape(64, -1)
    padding = ConvShape(1, 1, 1, 1, 1, 1, 1, pad=(0, (n - 1) // 2))  # one pixel, the rest zeros
    ways = {name: (work, 8 * n) for name, work in copies(device, target, source).items()}
    ways["scale in place"] = (lambda: update.scale(device, target, 1.0), 8 * n)
    ways["row_sum read"] = (lambda: reduce.row_sum(device, rows, sums), rows.nbytes)
    ways["im2col write"] = (lambda: im2col(device, source[:1].reshape(padding.x), target[: padding.Q].reshape(1, -1),
                                           padding), 4 * n)
    if device.kind == "host":
        ways["NumPy write"] = (numpy_copy(device.threads, target, np.float32(1)), 4 * n)
    best = wall_seconds(device, {name: work for name, (work, _) in ways.items()}, target)
    return {name: moved / best[name] / 1e9 for name, (_, moved) in ways.items()}


def _sgemm_peak(device: Device, size: int) -> float:
    """GFLOP/s of the device's sgemm of size x size matrices."""
    a, b, c = (device.zeros((size, size)) for _ in range(3))
    a.fill(0.5)
    b.fill(0.25)
    best = wall_seconds(device, {"sgemm": lambda: device.sgemm(a, b, c)}, c)
    return 2 * size**3 / best["sgemm"] / 1e9


def wall_seconds(device: Device, works: dict[str, Work], result: Array) -> dict[str, float]:
    """Least seconds of each work over interleaved rounds by the wall clock, `result` read back at the end of each."""
    counts = {}
    for name, work in works.items():
        _run(device, work, 1, result)
        counts[name] = max(1, int(LONG_S[device.kind] / max(_run(device, work, 1, result), 1e-6)))
    best = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            best[name] = min(best[name], _run(device, work, counts[name], result) / counts[name])
    return best


def _run(device: Device, work: Work, count: int, result: Array) -> float:
    """Wall-clock seconds of `count` runs, up to one element of the result on the host."""
    begin = time.perf_counter()
    for _ in range(count):
        work()
    device.download(result.reshape(-1)[:1])
    return time.perf_counter() - begin
