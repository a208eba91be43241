"""The CUDA device: the kernels' text through CuPy's RawModule (NVRTC), GEMMs through cuBLAS.

Only this file and nccl.py import CuPy, and only inside functions, for it may be absent.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from . import source
from .device import (
    Array,
    Memory,
    Work,
    check_array,
    check_copy,
    check_count,
    check_gemm,
    check_scalar,
    leading_dimension,
    plan_launch,
)
from .pinned import PinnedStage, Staging
from .source import Signature

if TYPE_CHECKING:
    from .nccl import Communicator

OPTIONS = ("--std=c++17",)  # CuPy adds the architecture of the device in use
MATH_MODES = {"fp32": 2, "tf32": 3}  # cublasMath_t: CUBLAS_PEDANTIC_MATH, CUBLAS_TF32_TENSOR_OP_MATH
BLAS_LIMIT = 2**31 - 1  # cuBLAS takes its extents as int
_INSTALL = "pip install 'sprint-cnn[cuda12]'"


def missing() -> str | None:
    """Why no CUDA device can be used, with the cure, in one line; None when one can.

    Imports CuPy only where it is installed and a driver is there.
    """
    if importlib.util.find_spec("cupy") is None:
        return f"CuPy is not installed; where there is an NVIDIA GPU: {_INSTALL}"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU; unset it, or set it to 0"
    if not _driver_found():
        return "no NVIDIA driver (libcuda.so.1); install the driver, or start the container with its GPUs"
    return _libraries_missing()


def _driver_found() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _libraries_missing() -> str | None:
    try:
        import cupy
        from cupy_backends.cuda.libs import cublas, nvrtc

        nvrtc.getVersion(), cublas.CUBLAS_OP_N  # these load their libraries
        cupy.cuda.runtime.getDeviceCount()  # raises cudaErrorNoDevice where there is none
    except Exception as error:  # whatever a broken installation raises, the host can still be used
        return f"CuPy finds no usable CUDA ({first_line(error)}); check nvidia-smi, then {_INSTALL}"
    return None


def first_line(error: BaseException) -> str:
    """First line of an exception's message, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def convert(cupy: Any, index: int, signature: Signature, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a launch as CuPy must get them: arrays on device `index`, scalars of their declared type.

    CuPy would ignore strides and pass a Python number as 64 bits. Raises TypeError, ValueError or RuntimeError.
    """
    check_count(signature, args)
    return tuple(
        _checked(cupy, index, signature.name, p, a) if p.pointer
        else p.dtype.type(check_scalar(signature.name, p, a))
        for p, a in zip(signature.parameters, args, strict=True)
    )


def _checked(cupy: Any, index: int, kernel: str, parameter: source.Parameter, array: Any) -> Any:
    check_home(cupy, index, f"{kernel}: expected {parameter.name}", array)
    check_array(kernel, parameter, array)
    return array


def check_home(cupy: Any, index: int, expected: str, array: Any) -> None:
    """Check that `array` is a CuPy array on device `index`. Raises TypeError or RuntimeError."""
    if not isinstance(array, cupy.ndarray):
        raise TypeError(f"{expected} as a cupy array, got {type(array).__name__}")
    if array.data.device_id != index:
        raise RuntimeError(f"{expected} on cuda:{index}, got cuda:{array.data.device_id}")


class CudaDevice:
    """One GPU with its own stream, compiled kernels and cuBLAS handle.

    All kernels are compiled at once, so threads that start later find them ready. Any thread may use the object:
    each call first makes the device and its stream current in the calling thread. Give every worker its own.
    Raises RuntimeError when CUDA, the device or its compiler is missing.
    """

    kind: Literal["host", "cuda"] = "cuda"
    mode = "cuda"
    threads = 1

    def __init__(self, index: int = 0, *, math_mode: str = "fp32") -> None:
        if reason := missing():
            raise RuntimeError(f"cuda:{index}: {reason}")
        import cupy
        from cupy_backends.cuda.libs import cublas

        count = cupy.cuda.runtime.getDeviceCount()
        if not 0 <= index < count:
            raise RuntimeError(f"cuda:{index}: expected a device of 0 to {count - 1}, got {index}")
        self.name, self.index, self.math_mode = f"cuda:{index}", index, math_mode
        self._cupy, self._cublas, self._lock = cupy, cublas, threading.Lock()
        with self._errors("open"):
            cupy.cuda.runtime.setDevice(index)
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._handle = cublas.create()
            cublas.setMathMode(self._handle, MATH_MODES[math_mode])
        self._staging = Staging(cupy, self._stream)
        self._kernels = {family: self._compile(family) for family in source.families()}

    def _compile(self, family: str) -> dict[str, Callable[..., None]]:
        """All kernels of a family, compiled now and not at their first launch."""
        with self._active(f"compile {family}.cu"):
            module = self._cupy.RawModule(code=source.cuda_text(family), options=OPTIONS, backend="nvrtc")
            kernels = {name: module.get_function(name) for name in source.signatures(family)}
            for kernel in kernels.values():
                kernel.compile()
            return kernels

    @contextmanager
    def _active(self, op: str) -> Iterator[None]:
        """Makes this device and its stream current in the calling thread."""
        runtime = self._cupy.cuda.runtime
        with self._errors(op):
            runtime.setDevice(self.index)
            self._stream.use()
            if runtime.getDevice() != self.index:
                raise RuntimeError(f"expected {self.name} in this thread, got cuda:{runtime.getDevice()}")
            yield

    @contextmanager
    def _errors(self, op: str) -> Iterator[None]:
        """Turns what CuPy raises into a RuntimeError of one line."""
        cuda = self._cupy.cuda
        try:
            yield
        except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError, cuda.memory.OutOfMemoryError,
                cuda.compiler.CompileException, self._cublas.CUBLASError) as error:
            raise RuntimeError(f"{op} on {self.name}: {first_line(error)}") from error

    def empty(self, shape: tuple[int, ...] | int, dtype: Any = np.float32) -> Array:
        """Uninitialised array."""
        with self._active(f"allocate {shape}"):
            return self._cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any = np.float32) -> Array:
        """Array of zeros."""
        with self._active(f"allocate {shape}"):
            return self._cupy.zeros(shape, dtype)

    def upload(self, array: np.ndarray) -> Array:
        """New device array with the values of `array`, which may be changed as soon as this returns."""
        result = self.empty(array.shape, array.dtype)
        self.copy(result, np.asarray(array, order="C"))
        return result

    def download(self, array: Array) -> np.ndarray:
        """Copy of a device array as a NumPy array; waits for the work before it."""
        result = np.empty(array.shape, array.dtype)
        self.copy(result, array)
        return result

    def copy(self, dst: Array, src: Array) -> None:
        """dst = src; equal shapes and dtypes, contiguous, each a NumPy array or an array of this device."""
        check_copy(dst, src)
        for name, array in (("dst", dst), ("src", src)):
            if not isinstance(array, np.ndarray):
                check_home(self._cupy, self.index, f"copy: expected {name}", array)
        with self._lock, self._active("copy"):
            self._staging.copy(dst, src)

    def stage(self, n: int) -> PinnedStage:
        """A page-locked vector of n floats between the host and this device."""
        return PinnedStage(self._cupy, self._stream, self._active, n)

    def communicator(self, size: int, identity: str, rank: int) -> Communicator:
        """This device's place among `size` of as many processes, which all come here; see nccl.py."""
        from .nccl import Communicator

        return Communicator(self._active, self._stream, size, identity, rank)

    def launch(self, family: str, kernel: str, work: Work, *args: Any, block: int | None = None) -> None:
        """Queue `kernel` of kernels/`family`.cu over `work`; arguments are checked against its C signature."""
        values = convert(self._cupy, self.index, source.signatures(family)[kernel], args)
        grid, threads = plan_launch(work) if block is None else plan_launch(work, block)
        if work.count:
            with self._active(kernel):
                self._kernels[family][kernel](grid, threads, values)

    def sgemm(self, a: Array, b: Array, c: Array, *, trans_a: bool = False, trans_b: bool = False,
              alpha: float = 1.0, beta: float = 0.0) -> None:
        """c(m,n) = alpha op(a)(m,k) op(b)(k,n) + beta c by cuBLAS; row-major float32, rows may lie apart."""
        for name, array in (("a", a), ("b", b), ("c", c)):
            check_home(self._cupy, self.index, f"sgemm: expected {name}", array)
        m, n, k = check_gemm(a, b, c, trans_a, trans_b)
        with self._lock, self._active("sgemm"):
            if m * n and k:
                self._blas(a, b, c, (m, n, k), (trans_a, trans_b), np.array([alpha, beta], np.float32))
            elif m * n and beta:
                c *= np.float32(beta)
            elif m * n:
                c.fill(0)

    def _blas(self, a: Array, b: Array, c: Array, extents: tuple[int, int, int], trans: tuple[bool, bool],
              scales: np.ndarray) -> None:
        (m, n, k), (lda, ldb, ldc) = extents, map(leading_dimension, (a, b, c))
        if max(m, n, k, lda, ldb, ldc) > BLAS_LIMIT:
            got = f"m={m} n={n} k={k} ld={lda},{ldb},{ldc}"
            raise ValueError(f"sgemm: expected extents within 2^31-1, got {got}")
        alpha, beta = scales.ctypes.data, scales.ctypes.data + scales.itemsize
        # Row-major c is column-major c^T = op(b)^T op(a)^T: b goes first and nothing is transposed.
        self._cublas.sgemm(self._handle, int(trans[1]), int(trans[0]), n, m, k, alpha, b.data.ptr, ldb,
                           a.data.ptr, lda, beta, c.data.ptr, ldc)

    def synchronize(self) -> None:
        """Wait for all work of this device's stream."""
        with self._active("synchronize"):
            self._stream.synchronize()

    def native(self, name: str, subject: Any, function: Callable[..., int], *args: Any) -> int:
        """The host's library functions do not run here."""
        raise RuntimeError(f"{name}: expected the host device, got {self.name}")

    @contextmanager
    def range(self, label: str) -> Iterator[None]:
        """A named stretch of work: an NVTX range that Nsight shows."""
        self._cupy.cuda.nvtx.RangePush(label)
        try:
            yield
        finally:
            self._cupy.cuda.nvtx.RangePop()

    def mark(self) -> Any:
        """An event queued behind all work so far."""
        with self._active("mark"):
            event = self._cupy.cuda.Event()
            event.record(self._stream)
            return event

    def elapsed_ms(self, first: Any, last: Any) -> float:
        """Milliseconds of the GPU between two marks; waits for the last."""
        with self._active("elapsed_ms"):
            last.synchronize()
            return self._cupy.cuda.get_elapsed_time(first, last)

    def memory(self) -> Memory:
        """Free bytes (those that CuPy's pool keeps counted in) and all bytes of the GPU."""
        with self._active("memory"):
            free, total = self._cupy.cuda.runtime.memGetInfo()
            return Memory(free + self._cupy.get_default_memory_pool().free_bytes(), total)

    def describe(self) -> str:
        """One line for people: name, GPU, compute capability, math mode."""
        with self._errors("describe"):
            facts = self._cupy.cuda.runtime.getDeviceProperties(self.index)
        capability = f"{facts['major']}.{facts['minor']}"
        return f"{self.name} ({facts['name'].decode()}, compute capability {capability}, {self.math_mode})"
