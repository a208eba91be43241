"""What a device is: memory, kernel launches and one GEMM. The host and CUDA devices both look like this."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from . import limits
from .source import Parameter, Signature

Array = Any  # numpy.ndarray on the host, cupy.ndarray on cuda
Dim3 = tuple[int, int, int]  # x, y, z
INDEX_LIMIT = 2**63 - 1
GRID_LIMIT = 2**31 - 1  # blocks in x on every CUDA architecture
DEFAULT_BLOCK = 256
ROW_GRID_LIMIT = 65535


@dataclass(frozen=True)
class Work:
    """How much a launch has to do: `count` elements or rows, or an explicit `grid` of `block` tiles."""

    kind: Literal["elements", "rows", "tiles"]
    count: int
    grid: Dim3 = (1, 1, 1)
    block: Dim3 | None = None


def elements(count: int) -> Work:
    """`count` independent items: one grid-stride loop."""
    return Work("elements", _checked_count(count))


def rows(count: int) -> Work:
    """`count` rows, each worked on by a whole block."""
    return Work("rows", _checked_count(count))


def tiles(grid: Dim3, block: Dim3) -> Work:
    """An explicit grid, for kernels with tiles in shared memory and barriers of their own."""
    if math.prod(block) > 1024 or min(block) < 1:
        raise ValueError(f"launch: expected a block of 1 to 1024 threads, got {block}")
    if grid[0] > GRID_LIMIT or max(grid[1:]) > 65535:
        raise ValueError(f"launch: expected a grid within (2^31-1, 65535, 65535), got {grid}")
    return Work("tiles", _checked_count(math.prod(grid)), grid, block)


def _checked_count(count: int) -> int:
    if not isinstance(count, (int, np.integer)):
        raise TypeError(f"launch: expected a whole number of items of work, got {type(count).__name__}")
    if not 0 <= count <= INDEX_LIMIT:
        raise ValueError(f"launch: expected 0 to 2^63-1 items of work, got {count}")
    return int(count)


def plan_launch(work: Work, block: int = DEFAULT_BLOCK) -> tuple[Dim3, Dim3]:
    """Grid and block (x, y, z) of a CUDA launch. Kernels stride, so a capped grid is still right."""
    if block < 32 or block > 1024 or block % 32:
        raise ValueError(f"launch: expected a block of 32 to 1024 threads in whole warps, got {block}")
    if work.kind == "tiles":
        assert work.block is not None
        return work.grid, work.block
    if work.kind == "rows":
        return (min(work.count, ROW_GRID_LIMIT), 1, 1), (block, 1, 1)
    return (min(-(-work.count // block), GRID_LIMIT), 1, 1), (block, 1, 1)


@dataclass(frozen=True)
class Memory:
    """Bytes of a device's memory: what can still be taken, and all of it."""

    available: int
    total: int


class Stage(Protocol):
    """The way of flat float32 vectors (n,) between the host and one device, without an allocation."""

    def up(self, dst: Array, src: np.ndarray) -> None:
        """dst = src; `src` may be changed once this returns."""

    def down(self, src: Array) -> np.ndarray:
        """The values of `src` on the host, to be read before the next call; waits for the device."""


class Device(Protocol):
    """A place where kernels run. Work is queued in order; `synchronize` and `download` wait for it.

    `mark` queues a mark behind the work so far; `elapsed_ms` waits for the second of two and gives the time between.
    """

    name: str
    kind: Literal["host", "cuda"]
    threads: int
    mode: str

    def empty(self, shape: tuple[int, ...] | int, dtype: Any = np.float32) -> Array: ...
    def zeros(self, shape: tuple[int, ...] | int, dtype: Any = np.float32) -> Array: ...
    def upload(self, array: np.ndarray) -> Array: ...
    def download(self, array: Array) -> np.ndarray: ...
    def copy(self, dst: Array, src: Array) -> None: ...
    def stage(self, n: int) -> Stage: ...
    def launch(self, family: str, kernel: str, work: Work, *args: Any, block: int | None = None) -> None: ...
    def sgemm(self, a: Array, b: Array, c: Array, *, trans_a: bool = False, trans_b: bool = False,
              alpha: float = 1.0, beta: float = 0.0) -> None: ...
    def synchronize(self) -> None: ...
    def native(self, name: str, subject: Any, function: Callable[..., int], *args: Any) -> int: ...
    def range(self, label: str) -> AbstractContextManager[Any]: ...
    def mark(self) -> Any: ...
    def elapsed_ms(self, first: Any, last: Any) -> float: ...
    def memory(self) -> Memory: ...
    def describe(self) -> str: ...


def check_scalar(kernel: str, parameter: Parameter, value: Any) -> Any:
    """Cast a scalar to its declared C type. Raises TypeError or ValueError where C would wrap round."""
    kinds, least, greatest = _limits(parameter.dtype)
    if not isinstance(value, kinds):
        got = type(value).__name__
        raise TypeError(f"{kernel}: expected {parameter.name} as {parameter.ctype}, got {got}")
    if not least <= value <= greatest and not (float in kinds and (value != value or abs(value) == math.inf)):
        raise ValueError(f"{kernel}: expected {parameter.name} to fit {parameter.ctype}, got {value}")
    return float(value) if float in kinds else int(value)


@functools.cache
def _limits(dtype: np.dtype[Any]) -> tuple[tuple[Any, ...], int, int]:
    """Python and NumPy types that a C scalar may be made of, its least and greatest finite value."""
    real = dtype.kind == "f"
    info: Any = np.finfo(dtype) if real else np.iinfo(dtype)
    return (int, np.integer, *((float, np.floating) if real else ())), int(info.min), int(info.max)


def check_array(kernel: str, parameter: Parameter, array: Array) -> None:
    """Check dtype and layout of an array argument. The device itself checks where the array lives."""
    if array.dtype != parameter.dtype:
        raise TypeError(f"{kernel}: expected {parameter.name} as {parameter.dtype}, got {array.dtype}")
    if parameter.strided:
        check_matrix(kernel, parameter.name, array)
    elif not array.flags.c_contiguous:
        raise ValueError(f"{kernel}: expected {parameter.name} C-contiguous, got shape {array.shape} "
                         f"with strides {array.strides}")


def check_count(signature: Signature, args: tuple[Any, ...]) -> None:
    """Check the number of arguments of a launch."""
    if len(args) != len(signature.parameters):
        raise TypeError(f"{signature.name}: expected {len(signature.parameters)} arguments, got {len(args)}")


def check_copy(dst: Array, src: Array) -> None:
    """Check that src can be copied into dst: equal shapes and dtypes, both contiguous."""
    if dst.shape != src.shape or dst.dtype != src.dtype:
        raise ValueError(f"copy: expected {tuple(dst.shape)} {dst.dtype}, got {tuple(src.shape)} {src.dtype}")
    for name, array in (("dst", dst), ("src", src)):
        if not array.flags.c_contiguous:
            raise ValueError(f"copy: expected {name} C-contiguous, got strides {array.strides}")


def check_gemm(a: Array, b: Array, c: Array, trans_a: bool, trans_b: bool) -> tuple[int, int, int]:
    """(m, n, k) of c(m,n) = op(a)(m,k) op(b)(k,n). Rows may lie apart (a slice of columns).

    Raises TypeError or ValueError when they do not belong together, or c lies over a or b, which it would destroy.
    """
    for name, array in (("a", a), ("b", b), ("c", c)):
        check_matrix("sgemm", name, array)
    m, k = a.shape[::-1] if trans_a else a.shape
    k_b, n = b.shape[::-1] if trans_b else b.shape
    if k != k_b or c.shape != (m, n):
        got = f"k={k} and {k_b}, c{tuple(c.shape)}"
        raise ValueError(f"sgemm: expected a({m},k) b(k,{n}) c({m},{n}), got {got}")
    for name, array in (("a", a), ("b", b)):
        if _overlap(array, c):
            got = f"c{tuple(c.shape)} over {name}{tuple(array.shape)}"
            raise ValueError(f"sgemm: expected c apart from {name}, got {got}")
    return m, n, k


def check_matrix(op: str, name: str, array: Array) -> None:
    """Check a row-major float32 matrix whose rows may lie apart."""
    if array.ndim != 2:
        raise ValueError(f"{op}: expected {name} with 2 dimensions, got shape {tuple(array.shape)}")
    if array.dtype != np.float32:
        raise TypeError(f"{op}: expected {name} as float32, got {array.dtype}")
    (rows_, columns), (row_step, step) = array.shape, array.strides
    apart = rows_ > 1 and (row_step < 4 * columns or row_step % 4)
    if array.size and (apart or (columns > 1 and step != 4)):
        got = f"shape {tuple(array.shape)} with strides {tuple(array.strides)}"
        raise ValueError(f"{op}: expected {name} row-major, got {got}")


def _overlap(a: Array, b: Array) -> bool:
    """Whether two checked matrices have an element in common; of rows at equal distances the columns may differ."""
    if not a.size or not b.size:
        return False
    (first, length), (second, other) = _span(a), _span(b)
    if first + length <= second or second + other <= first:
        return False
    step, between = a.strides[0], second - first
    rows_apart = a.shape[0] > 1 and b.shape[0] > 1 and step == b.strides[0]
    return not (rows_apart and 4 * a.shape[1] <= between % step <= step - 4 * b.shape[1])


def _span(array: Array) -> tuple[int, int]:
    """Address of a checked matrix, and bytes from its first element to its last."""
    start = array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr
    return start, (array.shape[0] - 1) * array.strides[0] + 4 * array.shape[1]


def leading_dimension(array: Array) -> int:
    """Elements from one row of a checked matrix to the next, as BLAS wants it."""
    return max(1, array.strides[0] // 4 if array.shape[0] > 1 else array.shape[1])


def open_device(spec: str = "auto", *, threads: int | None = None, math_mode: str = "fp32") -> Device:
    """Open a device by name: 'auto', 'host', 'host:I', 'cuda' or 'cuda:I'.

    'auto' takes the first CUDA device, or else the host. `threads` is the host device's own count (default:
    all cores this process may use); `math_mode` is 'fp32' or 'tf32' (cuda only).
    Raises ValueError for an unknown name, RuntimeError when the device is not there.
    """
    match = re.fullmatch(limits.DEVICE, spec)
    if match is None:
        raise ValueError(f"device: expected {limits.DEVICES}, got '{spec}'")
    if math_mode not in ("fp32", "tf32"):
        raise ValueError(f"math: expected fp32 or tf32, got '{math_mode}'")
    from . import cuda
    from .host import HostDevice

    kind, index = match[1] or ("host" if cuda.missing() else "cuda"), int(match[2] or 0)
    if kind == "cuda":
        return cuda.CudaDevice(index, math_mode=math_mode)
    return HostDevice(index, threads=threads)
