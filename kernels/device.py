"""What a device is: memory, kernel launches and one GEMM. The host and CUDA devices both look like this."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from .source import Parameter, Signature

Array = Any  # numpy.ndarray on the host, cupy.ndarray on cuda
INDEX_LIMIT = 2**63 - 1
GRID_LIMIT = 2**31 - 1  # blocks in x on every CUDA architecture
DEFAULT_BLOCK = 256
ROW_GRID_LIMIT = 65535


@dataclass(frozen=True)
class Work:
    """How much a launch has to do: `count` elements or rows, or an explicit `grid` of `block` tiles."""

    kind: Literal["elements", "rows", "tiles"]
    count: int
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] | None = None


def elements(count: int) -> Work:
    """`count` independent items: one grid-stride loop."""
    return Work("elements", _checked_count(count))


def rows(count: int) -> Work:
    """`count` rows, each worked on by a whole block."""
    return Work("rows", _checked_count(count))


def tiles(grid: tuple[int, int, int], block: tuple[int, int, int]) -> Work:
    """An explicit grid, for kernels with tiles in shared memory and barriers of their own."""
    if math.prod(block) > 1024 or min(block) < 1:
        raise ValueError(f"launch: expected a block of 1 to 1024 threads, got {block}")
    if grid[0] > GRID_LIMIT or max(grid[1:]) > 65535:
        raise ValueError(f"launch: expected a grid within (2^31-1, 65535, 65535), got {grid}")
    return Work("tiles", _checked_count(math.prod(grid)), grid, block)


def _checked_count(count: int) -> int:
    if not 0 <= count <= INDEX_LIMIT:
        raise ValueError(f"launch: expected 0 to 2^63-1 items of work, got {count}")
    return int(count)


def plan_launch(work: Work, block: int = DEFAULT_BLOCK) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Grid and block (x, y, z) of a CUDA launch; the kernels' loops stride, so a capped grid is still right."""
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


class Device(Protocol):
    """A place where kernels run. Work is queued in order; `synchronize` and `download` wait for it."""

    name: str
    kind: Literal["host", "cuda"]
    threads: int
    mode: str

    def empty(self, shape: tuple[int, ...] | int, dtype: Any = np.float32) -> Array: ...
    def zeros(self, shape: tuple[int, ...] | int, dtype: Any = np.float32) -> Array: ...
    def upload(self, array: np.ndarray) -> Array: ...
    def download(self, array: Array) -> np.ndarray: ...
    def copy(self, dst: Array, src: Array) -> None: ...
    def launch(self, family: str, kernel: str, work: Work, *args: Any, block: int | None = None) -> None: ...
    def sgemm(self, a: Array, b: Array, c: Array, *, trans_a: bool = False, trans_b: bool = False,
              alpha: float = 1.0, beta: float = 0.0) -> None: ...
    def synchronize(self) -> None: ...
    def memory(self) -> Memory: ...
    def describe(self) -> str: ...


def check_scalar(kernel: str, parameter: Parameter, value: Any) -> Any:
    """Cast a scalar argument to its declared C type. Raises TypeError or ValueError instead of wrapping round."""
    if isinstance(value, (bool, int, np.integer)):
        if parameter.dtype.kind == "f":
            return float(value)
        info = np.iinfo(parameter.dtype)
        if not info.min <= value <= info.max:
            raise ValueError(f"{kernel}: expected {parameter.name} to fit {parameter.ctype}, got {value}")
        return int(value)
    if isinstance(value, (float, np.floating)) and parameter.dtype.kind == "f":
        return float(value)
    raise TypeError(f"{kernel}: expected {parameter.name} as {parameter.ctype}, got {type(value).__name__}")


def check_array(kernel: str, parameter: Parameter, array: Array) -> None:
    """Check dtype and layout of an array argument. The device itself checks where the array lives."""
    if array.dtype != parameter.dtype:
        raise TypeError(f"{kernel}: expected {parameter.name} as {parameter.dtype}, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{kernel}: expected {parameter.name} C-contiguous, got shape {array.shape} "
                         f"with strides {array.strides}")


def check_count(signature: Signature, args: tuple[Any, ...]) -> None:
    """Check the number of arguments of a launch."""
    if len(args) != len(signature.parameters):
        raise TypeError(f"{signature.name}: expected {len(signature.parameters)} arguments, got {len(args)}")


def check_gemm(a: Array, b: Array, c: Array, trans_a: bool, trans_b: bool) -> tuple[int, int, int]:
    """(m, n, k) of c(m,n) = op(a)(m,k) op(b)(k,n). Rows may be strided (a slice of columns), elements may not."""
    for name, array in (("a", a), ("b", b), ("c", c)):
        if array.ndim != 2:
            raise ValueError(f"sgemm: expected {name} with 2 dimensions, got shape {array.shape}")
        if array.dtype != np.float32:
            raise TypeError(f"sgemm: expected {name} as float32, got {array.dtype}")
        if array.size and (array.strides[1] != 4 and array.shape[1] > 1 or array.strides[0] < 4 * array.shape[1]):
            raise ValueError(f"sgemm: expected {name} row-major, got strides {array.strides} of shape {array.shape}")
    m, k = a.shape[::-1] if trans_a else a.shape
    k_b, n = b.shape[::-1] if trans_b else b.shape
    if k != k_b or c.shape != (m, n):
        raise ValueError(f"sgemm: expected a({m},k) b(k,{n}) c({m},{n}), got k={k} and {k_b}, c{tuple(c.shape)}")
    return m, n, k


def open_device(spec: str = "auto", *, threads: int | None = None, math_mode: str = "fp32") -> Device:
    """Open a device by name: 'auto', 'host', 'host:I', 'cuda' or 'cuda:I'.

    'auto' takes the first CUDA device, or else the host. `threads` is the host device's own OpenMP thread count (default:
    all cores this process may use); `math_mode` is 'fp32' or 'tf32' (cuda only). Raises ValueError for an unknown name,
    RuntimeError when the device is not there.
    """
    kind, _, number = spec.partition(":")
    if kind not in ("auto", "host", "cuda") or (number and not number.isdecimal()) or (kind == "auto" and number):
        raise ValueError(f"device: expected auto, host, host:I, cuda or cuda:I, got '{spec}'")
    if math_mode not in ("fp32", "tf32"):
        raise ValueError(f"math: expected fp32 or tf32, got '{math_mode}'")
    index = int(number or 0)
    if kind == "auto":
        from . import cuda

        kind = "host" if cuda.missing() else "cuda"
    if kind == "cuda":
        from . import cuda

        return cuda.CudaDevice(index, math_mode=math_mode)
    from .host import HostDevice

    return HostDevice(index, threads=threads)
