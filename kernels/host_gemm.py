"""Convolution and sgemm of the host on our own register tiles (host_tile.h, host_gemm.cpp, host_conv*)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Literal

import numpy as np

from . import source
from .conv_shape import ConvShape, check_extents, expect_shape
from .device import Array, Device, check_gemm

FILES = ("host_tile.h", "host_gemm_narrow.cpp", "host_gemm.cpp", "host_conv.h", "host_conv_forward.cpp",
         "host_conv_data.cpp", "host_conv_filter.cpp", "host_winograd.h", "host_winograd_forward.cpp",
         "host_winograd_data.cpp", "host_winograd_filter.cpp")
POOL_LIMIT = 15  # a window's elements are numbered in one byte
Step = Literal["forward", "data", "filter"]
Algorithm = Literal["direct", "winograd"]


class _Shape(ctypes.Structure):
    """ConvShape of host_conv.h."""

    _fields_ = tuple((name, ctypes.c_int64) for name in
                     ("C", "N", "H", "W", "K", "R", "S", "stride_h", "stride_w", "pad_h", "pad_w", "pool"))


@functools.cache
def _library() -> ctypes.CDLL:
    library = source.build_host_library("host_gemm", FILES)
    pointer, i64, i32, f32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
    shape = ctypes.POINTER(_Shape)
    signatures = {
        "sgemm": [i32, i32, i64, i64, i64, f32, pointer, i64, pointer, i64, f32, pointer, i64, i32, pointer],
    }
    for algorithm in ("direct", "winograd"):
        signatures[f"{algorithm}_forward"] = [shape, pointer, pointer, pointer, i32, pointer, pointer, i32, pointer]
        signatures[f"{algorithm}_data"] = [shape, *[pointer] * 5, i32, pointer]
        signatures[f"{algorithm}_filter"] = [shape, *[pointer] * 6, i32, pointer]
    for name, arguments in signatures.items():
        function, workspace = getattr(library, name), getattr(library, f"{name}_workspace")
        function.argtypes, function.restype = arguments, i32
        workspace.argtypes, workspace.restype = [*([i64] * 3 if name == "sgemm" else [shape]), i32], i64
    return library


@functools.cache
def _shape(shape: ConvShape, pool: int) -> _Shape:
    check_extents("conv", pool=(pool, 1, POOL_LIMIT))
    return _Shape(shape.C, shape.N, shape.H, shape.W, shape.K, shape.R, shape.S, *shape.stride, *shape.pad, pool)


def winograd_fits(shape: ConvShape, pool: int = 1) -> bool:
    """Whether Winograd's algorithm can take this layer: 3x3 filters at stride 1, pool at most 2."""
    return (shape.R, shape.S, *shape.stride) == (3, 3, 1, 1) and pool <= 2


@functools.cache
def conv_workspace(step: Step, shape: ConvShape, threads: int, pool: int = 1, algorithm: Algorithm = "direct") -> int:
    """Bytes of workspace that one pass of `shape` needs on `threads` threads."""
    return getattr(_library(), f"{algorithm}_{step}_workspace")(_shape(shape, pool), threads)


class ConvPass:
    """One pass of one layer on so many threads, all but the arrays known.

    Raises ValueError where the algorithm does not fit the layer.
    """

    def __init__(self, step: Step, shape: ConvShape, threads: int, pool: int, algorithm: Algorithm) -> None:
        if algorithm == "winograd" and not winograd_fits(shape, pool):
            raise ValueError(f"winograd: expected 3x3 filters at stride 1 and pool at most 2, got {shape} "
                             f"with pool {pool}")
        self.name, self.threads = f"{algorithm}_{step}", threads
        self.workspace_bytes = conv_workspace(step, shape, threads, pool, algorithm)
        self._subject, self._shape = (shape, pool), _shape(shape, pool)
        self._function = getattr(_library(), self.name)

    def bind(self, device: Device, workspace: Array, *arguments: Array | int | None) -> Callable[[], None]:
        """A call that runs it on these arrays, which it does not keep alive, and of which nothing is checked here."""
        values = [_address(value) if isinstance(value, np.ndarray) else value for value in arguments]
        native = functools.partial(device.native, self.name, self._subject, self._function, self._shape, *values,
                                   self.threads, _address(workspace))

        def call() -> None:
            if native():
                shape, pool = self._subject
                raise ValueError(f"{self.name}: expected a valid shape, got {shape} with pool {pool}")

        return call


conv_pass = functools.cache(ConvPass)


@functools.cache
def sgemm_workspace(m: int, n: int, k: int, threads: int) -> int:
    """Bytes of workspace that `sgemm` needs on `threads` threads."""
    return _library().sgemm_workspace(m, n, k, threads)


def pooled(shape: ConvShape, pool: int) -> tuple[int, int, int, int]:
    """Output shape of a layer that ends in a pool x pool maximum at stride pool: (K, N, P // pool, Q // pool)."""
    return shape.K, shape.N, shape.P // pool, shape.Q // pool


def conv_forward(device: Device, x: Array, w: Array, y: Array, shape: ConvShape, workspace: Array, *,
                 bias: Array | None = None, relu: bool = False, pool: int = 1, arg: Array | None = None,
                 algorithm: Algorithm = "direct") -> None:
    """y = max-pool(ReLU(w * x + bias)); bias, ReLU and pool only when asked for.

    x (C,N,H,W), w (K,C,R,S), bias (K) float32; y (K,N,P//pool,Q//pool) float32 and arg of y's shape uint8, the number
    (row by row) of each window's first maximum, every element written; NaN goes through ReLU and wins its window.
    workspace uint8 of at least conv_workspace("forward", ...) bytes, not cleared. Equal bytes for any thread count.
    Raises ValueError (shapes, layout, workspace) or TypeError (dtype).
    """
    op = "conv_forward"
    expect_shape(op, x=(x.shape, shape.x), w=(w.shape, shape.w), y=(y.shape, pooled(shape, pool)))
    _expect_like(op, bias=(bias, (shape.K,)), arg=(arg, y.shape))
    _expect_floats(op, x=x, w=w, bias=bias, y=y)
    _expect_bytes(op, arg)
    _run("forward", algorithm, device, shape, pool, workspace, x, w, bias, int(relu), y, arg)


def conv_backward_data(device: Device, dy: Array, w: Array, dx: Array, shape: ConvShape, workspace: Array, *,
                       y: Array | None = None, pool: int = 1, arg: Array | None = None,
                       algorithm: Algorithm = "direct") -> None:
    """dx = gradient to x; dy is the gradient to conv_forward's y. y and arg take dy back through ReLU and pool.

    dy, y, arg (K,N,P//pool,Q//pool) float32, float32, uint8; w (K,C,R,S), dx (C,N,H,W) float32, every element written.
    workspace as for conv_forward. Equal bytes every run with one thread count. Raises ValueError or TypeError.
    """
    op = "conv_backward_data"
    expect_shape(op, dy=(dy.shape, pooled(shape, pool)), w=(w.shape, shape.w), dx=(dx.shape, shape.x))
    _expect_source(op, dy, y, pool, arg)
    _expect_floats(op, dy=dy, y=y, w=w, dx=dx)
    _run("data", algorithm, device, shape, pool, workspace, dy, y, arg, w, dx)


def conv_backward_filter(device: Device, x: Array, dy: Array, dw: Array, shape: ConvShape, workspace: Array, *,
                         db: Array | None = None, y: Array | None = None, pool: int = 1, arg: Array | None = None,
                         algorithm: Algorithm = "direct") -> None:
    """dw, db = gradients to w and bias, summed over images and positions; y and arg as in conv_backward_data.

    x (C,N,H,W), dy (K,N,P//pool,Q//pool), dw (K,C,R,S), db (K) float32, every element of dw and db written.
    workspace as for conv_forward. Equal bytes every run with one thread count. Raises ValueError or TypeError.
    """
    op = "conv_backward_filter"
    expect_shape(op, x=(x.shape, shape.x), dy=(dy.shape, pooled(shape, pool)), dw=(dw.shape, shape.w))
    _expect_like(op, db=(db, (shape.K,)))
    _expect_source(op, dy, y, pool, arg)
    _expect_floats(op, x=x, dy=dy, y=y, dw=dw, db=db)
    _run("filter", algorithm, device, shape, pool, workspace, x, dy, y, arg, dw, db)


def sgemm(device: Device, a: Array, b: Array, c: Array, workspace: Array, *, trans_a: bool = False,
          trans_b: bool = False, alpha: float = 1.0, beta: float = 0.0) -> None:
    """c(m,n) = alpha op(a)(m,k) op(b)(k,n) + beta c; row-major float32, rows may be strided; beta 0 never reads c.

    workspace uint8 of at least sgemm_workspace(m, n, k, threads) bytes. Equal bytes for any thread count.
    Raises ValueError or TypeError.
    """
    m, n, k = check_gemm(a, b, c, trans_a, trans_b)
    _expect_workspace("sgemm", workspace, sgemm_workspace(m, n, k, device.threads))
    device.native("sgemm", (m, n, k), _library().sgemm, trans_a, trans_b, m, n, k, alpha, _address(a), _ld(a),
                  _address(b), _ld(b), beta, _address(c), _ld(c), device.threads, _address(workspace))


def _ld(array: np.ndarray) -> int:
    return array.strides[0] // 4 if array.shape[0] > 1 else array.shape[1]


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _run(step: Step, algorithm: Algorithm, device: Device, shape: ConvShape, pool: int, workspace: Array,
         *arguments: Array | int | None) -> None:
    made = conv_pass(step, shape, device.threads, pool, algorithm)
    _expect_workspace(step, workspace, made.workspace_bytes)
    made.bind(device, workspace, *arguments)()


def _expect_workspace(op: str, workspace: np.ndarray, needed: int) -> None:
    if workspace.dtype != np.uint8 or not workspace.flags.c_contiguous or workspace.size < needed:
        raise ValueError(f"{op}: expected a contiguous uint8 workspace of at least {needed} bytes, "
                         f"got {workspace.dtype} of shape {workspace.shape}")


def _expect_source(op: str, dy: Array, y: Array | None, pool: int, arg: Array | None) -> None:
    if (pool > 1) != (arg is not None):
        raise ValueError(f"{op}: expected arg exactly when pool > 1, got pool {pool} and arg {arg is not None}")
    _expect_like(op, y=(y, dy.shape), arg=(arg, dy.shape))
    _expect_bytes(op, arg)


def _expect_like(op: str, **pairs: tuple[Array | None, tuple[int, ...]]) -> None:
    expect_shape(op, **{name: (array.shape, shape) for name, (array, shape) in pairs.items() if array is not None})


def _expect_floats(op: str, **named: np.ndarray | None) -> None:
    for name, array in named.items():
        if array is not None:
            _expect(op, name, array, np.dtype(np.float32))


def _expect_bytes(op: str, arg: np.ndarray | None) -> None:
    if arg is not None:
        _expect(op, "arg", arg, np.dtype(np.uint8))


def _expect(op: str, name: str, array: np.ndarray, dtype: np.dtype) -> None:
    if array.dtype != dtype:
        raise TypeError(f"{op}: expected {name} as {dtype}, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{op}: expected {name} C-contiguous, got shape {array.shape} with strides {array.strides}")
