"""What the table of cases is made of: an op with its arrays, reference, bytes and flops, and one call of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ..kernels.device import Array, Device
from .problems import Grammar, Problem

Arrays = dict[str, Any]  # by name: numpy.ndarray on the host, device arrays in a call
Fill = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Run = Callable[[Arrays], None]
MOVES = {"in": 1, "out": 1, "inout": 2}  # times that an array must cross the memory bus
EPSILON = float(np.finfo(np.float32).eps)
LARGE = f"n{1 << 24}"  # 64 MiB an array


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal float32."""
    return rng.standard_normal(shape, np.float32)


@dataclass(frozen=True)
class Spec:
    """One array of a call. share: the part of it that the call must touch (a stride may leave rows out)."""

    shape: tuple[int, ...]
    role: Literal["in", "out", "inout"] = "in"
    dtype: Any = np.float32
    fill: Fill = normal
    share: float = 1.0

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def bytes_moved(self) -> int:
        """Bytes that must move between memory and device for it."""
        return round(MOVES[self.role] * self.share * self.nbytes)


def few(p: Problem) -> tuple[float, float]:
    """(atol, rtol) of a few roundings of numbers near 1."""
    return 4e-6, 4e-6


def exactly(p: Problem) -> tuple[float, float]:
    """(atol, rtol) where nothing is rounded."""
    return 0.0, 0.0


def directly(function: Any, *names: str, **options: Any) -> Callable[[Device, Problem], Run]:
    """The bind of function(device, *arrays of these names, **options)."""
    def bind(device: Device, p: Problem) -> Run:
        return lambda a: function(device, *(a[name] for name in names), **options)

    return bind


@dataclass(frozen=True)
class Product:
    """The matrix product c(m,n) = op(a) op(b) inside a call, which BLAS can do alone; n or k is cut into `parts`."""

    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False
    parts: int = 1


@dataclass(frozen=True)
class Op:
    """One op of the table: everything that its check and its timing need to know.

    family: the .cu file (or group) it belongs to; kernels: pattern of the names of the launches that are this op.
    arrays(p): the arrays of a call by name; bind(device, p): the call, to be made with such arrays on the device;
    reference(p, arrays): what the output arrays must hold, in float64 (or exactly), from the arrays before the call.
    tolerance(p): (atol, rtol) of the comparison. flops(p): operations of the plain algorithm.
    from_launch(arguments): sizes and words of a recorded launch, from its arguments by name.
    product(p): the GEMM that BLAS would do; without one the library is a copy of as many bytes.
    missing(device, p): why the device cannot run it at all, None when it can.
    saving(p): by which factor a clever algorithm may do with fewer operations than `flops` counts.
    scratch(p): bytes that call and reference take at a time beyond the arrays.
    """

    grammar: Grammar
    family: str
    default: str  # sizes and words of `sprint bench NAME`, beyond the last-level cache where memory is the limit
    arrays: Callable[[Problem], dict[str, Spec]]
    bind: Callable[[Device, Problem], Run]
    reference: Callable[[Problem, Arrays], Arrays]
    flops: Callable[[Problem], int]
    tolerance: Callable[[Problem], tuple[float, float]] = exactly
    kernels: str = ""
    from_launch: Callable[[Arrays], tuple[dict[str, int], tuple[str, ...]]] | None = None
    product: Callable[[Problem], Product] | None = None
    missing: Callable[[Device, Problem], str | None] = lambda device, p: None
    saving: Callable[[Problem], float] = lambda p: 1.0
    scratch: Callable[[Problem], int] = lambda p: 0

    @property
    def name(self) -> str:
        """The first word of its problem strings."""
        return self.grammar.op


@dataclass(frozen=True)
class Case:
    """One problem of one op. Raises ValueError when the sizes do not belong together."""

    op: Op
    problem: Problem
    calls: int | None = field(default=None, compare=False)  # in one training step of the net it was asked for

    @cached_property
    def specs(self) -> dict[str, Spec]:
        """Its arrays by name."""
        return self.op.arrays(self.problem)

    @property
    def nbytes(self) -> int:
        """Bytes of all its arrays."""
        return sum(spec.nbytes for spec in self.specs.values())

    @property
    def bytes_moved(self) -> int:
        """Bytes that must move: every input once, every output once."""
        return sum(spec.bytes_moved for spec in self.specs.values())

    @property
    def flops(self) -> int:
        """Floating-point operations of the plain algorithm."""
        return self.op.flops(self.problem)

    @property
    def least_flops(self) -> float:
        """Floating-point operations that must be done."""
        return self.flops / self.op.saving(self.problem)

    def inputs(self, seed: int) -> Arrays:
        """Host arrays before the call: filled, and the outputs poisoned with NaN or the greatest integer."""
        rng = np.random.default_rng(seed)
        return {name: _poison(spec) if spec.role == "out" else spec.fill(rng, spec.shape)
                for name, spec in self.specs.items()}

    def bind(self, device: Device) -> Run:
        """The call on a device."""
        return self.op.bind(device, self.problem)

    def upload(self, device: Device, arrays: Arrays) -> dict[str, Array]:
        """Device arrays with the values of host arrays."""
        return {name: device.upload(array) for name, array in arrays.items()}


def _poison(spec: Spec) -> np.ndarray:
    value = np.nan if np.dtype(spec.dtype).kind == "f" else np.iinfo(spec.dtype).max
    return np.full(spec.shape, value, spec.dtype)
