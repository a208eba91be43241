"""The host device: the CUDA text of the kernels compiled for this processor, and the machine's BLAS."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np

from . import blas, limits, source
from .device import (
    Array,
    Memory,
    Work,
    check_array,
    check_copy,
    check_count,
    check_gemm,
    check_scalar,
)
from .source import Signature

_NO_RANGE = nullcontext()
ELEMENTS_PER_RANGE = 8192  # fewer are not worth waking a thread for
RANGES_PER_THREAD = 4  # lets threads that are ahead take more
ALIGNMENT = 64  # bytes; a cache line and an AVX-512 register
_CTYPES = {"float": ctypes.c_float, "int": ctypes.c_int, "i64": ctypes.c_longlong, "double": ctypes.c_double,
           "unsigned char": ctypes.c_ubyte, "unsigned": ctypes.c_uint}


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def aligned_empty(shape: tuple[int, ...] | int, dtype: Any = np.float32) -> np.ndarray:
    """Uninitialised C-contiguous array whose first byte lies on a cache line."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    raw = np.empty(count * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + count * dtype.itemsize].view(dtype).reshape(shape)


def address(array: np.ndarray) -> int:
    """Address of the first element."""
    return array.__array_interface__["data"][0]


class HostDevice:
    """A CPU device with its own thread count, so that host:0 and host:1 can be two one-core devices."""

    kind: Literal["host", "cuda"] = "host"
    mode = "fast"

    def __init__(self, index: int = 0, *, threads: int | None = None) -> None:
        if threads is not None and not 1 <= threads <= limits.THREADS:
            raise ValueError(f"host device: expected 1 to {limits.THREADS} threads, got {threads}")
        self.name = f"host:{index}"
        self.index = index
        self.threads = threads or min(usable_cores(), limits.THREADS)
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # idle OpenMP threads must not starve BLAS's

    def empty(self, shape: tuple[int, ...] | int, dtype: Any = np.float32) -> np.ndarray:
        """Uninitialised array."""
        return aligned_empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any = np.float32) -> np.ndarray:
        """Array of zeros."""
        array = aligned_empty(shape, dtype)
        array.fill(0)
        return array

    def upload(self, array: np.ndarray) -> np.ndarray:
        """New device array with the values of `array`."""
        result = aligned_empty(array.shape, array.dtype)
        np.copyto(result, array)
        return result

    def download(self, array: np.ndarray) -> np.ndarray:
        """Copy of a device array as a NumPy array."""
        return np.array(array, order="C")

    def copy(self, dst: np.ndarray, src: np.ndarray) -> None:
        """dst = src; equal shapes and dtypes, contiguous."""
        check_copy(dst, src)
        np.copyto(dst, src)

    def stage(self, n: int) -> HostStage:
        """The way to arrays that are on the host already."""
        return HostStage()

    def synchronize(self) -> None:
        """Host launches end before they return, so there is nothing to wait for."""

    def native(self, name: str, subject: Any, function: Callable[..., int], *args: Any) -> int:
        """Call a library function that is no kernel of a .cu file; `name` and `subject` tell an observer what it is."""
        return function(*args)

    def range(self, label: str) -> AbstractContextManager[None]:
        """A named stretch of work, for observers."""
        return _NO_RANGE

    def mark(self) -> float:
        """A moment behind all work so far."""
        return time.perf_counter()

    def elapsed_ms(self, first: float, last: float) -> float:
        """Milliseconds between two marks."""
        return 1e3 * (last - first)

    def memory(self) -> Memory:
        """Available and total bytes, the cgroup's limit counted in."""
        return host_memory()

    def describe(self) -> str:
        """One line for people: name, processor, threads, mode."""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.name} ({processor_name()}, {threads}, {self.mode})"

    def launch(self, family: str, kernel: str, work: Work, *args: Any, block: int | None = None) -> None:
        """Run `kernel` of kernels/`family`.cu over `work`; arguments are checked against its C signature."""
        signature = self.signature(family, kernel)
        check_count(signature, args)
        values = [_checked(kernel, p, a) for p, a in zip(signature.parameters, args, strict=True)]
        if work.count:
            self._run(family, signature, work, values, block)

    def signature(self, family: str, kernel: str) -> Signature:
        """C signature of a kernel."""
        return source.signatures(family)[kernel]

    def _run(self, family: str, signature: Signature, work: Work, values: list[Any],
             block: int | None) -> None:
        if work.kind == "tiles":
            raise RuntimeError(f"{signature.name}: expected a device with barriers, got {self.name} (fast)")
        function = _fast_function(family, signature.name)
        function(plan_ranges(work, self.threads), self.threads, *map(_raw, values))

    def sgemm(self, a: Array, b: Array, c: Array, *, trans_a: bool = False, trans_b: bool = False,
              alpha: float = 1.0, beta: float = 0.0) -> None:
        """c(m,n) = alpha op(a)(m,k) op(b)(k,n) + beta c by BLAS; row-major float32, rows may be strided."""
        m, n, k = check_gemm(a, b, c, trans_a, trans_b)
        if m * n == 0:
            return
        if k == 0:
            np.multiply(c, np.float32(beta), out=c) if beta else c.fill(0)
            return
        blas.sgemm(a, b, c, trans_a, trans_b, alpha, beta, self.threads)


class HostStage:
    """What a PinnedStage is on a GPU: one copy up, none down."""

    def up(self, dst: np.ndarray, src: np.ndarray) -> None:
        """dst = src."""
        check_copy(dst, src)
        np.copyto(dst, src)

    def down(self, src: np.ndarray) -> np.ndarray:
        """`src` itself."""
        return src


def _checked(kernel: str, parameter: source.Parameter, value: Any) -> Any:
    if not parameter.pointer:
        return check_scalar(kernel, parameter, value)
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{kernel}: expected {parameter.name} as a numpy array, got {type(value).__name__}")
    check_array(kernel, parameter, value)
    if not value.flags.aligned:
        raise ValueError(f"{kernel}: expected {parameter.name} aligned, got it at {address(value):#x}")
    if not parameter.constant and not value.flags.writeable:
        raise ValueError(f"{kernel}: expected {parameter.name} writeable, got a read-only array")
    return value


def _raw(value: Any) -> Any:
    return address(value) if isinstance(value, np.ndarray) else value


def plan_ranges(work: Work, threads: int) -> int:
    """Number of contiguous ranges that a fast launch is cut into."""
    grain = ELEMENTS_PER_RANGE if work.kind == "elements" else 1
    return max(1, min(threads * RANGES_PER_THREAD if threads > 1 else 1, work.count // grain))


@functools.cache
def _fast_function(family: str, kernel: str) -> Callable[..., None]:
    function = source.build_kernels(family, "fast")[f"launch_{kernel}"]
    function.restype = None
    function.argtypes = [ctypes.c_uint, ctypes.c_int, *c_types(source.signatures(family)[kernel])]
    return function


def c_types(signature: Signature) -> list[Any]:
    """ctypes of a kernel's parameters."""
    return [ctypes.c_void_p if p.pointer else _CTYPES[p.ctype] for p in signature.parameters]


def host_memory() -> Memory:
    """Bytes that this process can still take and the machine's total, within the cgroup's limit."""
    fields = {}
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            key, value = line.split(":")
            fields[key] = int(value.split()[0]) * 1024
    available, total = fields["MemAvailable"], fields["MemTotal"]
    for limit, used in _cgroup_memory():
        available, total = min(available, max(limit - used, 0)), min(total, limit)
    return Memory(available, total)


def _cgroup_memory(folder: Path = Path("/sys/fs/cgroup")) -> list[tuple[int, int]]:
    """(limit, used) bytes of a limited control group. Its page cache can be given back, so it is not used."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return []
    cache = int(fields.get("active_file", 0)) + int(fields.get("inactive_file", 0))
    return [] if limit == "max" else [(int(limit), used - cache)]


@functools.cache
def processor_name() -> str:
    """The processor's name as /proc/cpuinfo has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
