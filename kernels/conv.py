"""Convolution: one op, its algorithms (`explicit`, `implicit`, `winograd`) and a measured choice of them (`auto`)."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable

import numpy as np

from .activation import relu_backward
from .conv_algorithm import Algorithm, Gradient
from .conv_choice import CHOICES, Choices, device_tag, fastest
from .conv_explicit import Explicit
from .conv_implicit import Winograd, implicit
from .conv_shape import ConvShape, check_extents
from .device import Array, Device
from .host_gemm import POOL_LIMIT
from .pool import max_pool, max_pool_backward

MAKERS: dict[str, Callable[[Device, ConvShape, int | None, int], Algorithm]] = {
    "explicit": Explicit, "implicit": implicit, "winograd": Winograd}
ALGORITHMS = (*MAKERS, "auto")
MEASURED = {"host": ("implicit", "winograd"), "cuda": ("explicit", "implicit")}  # columns only cost a host memory
DIRECTIONS = ("forward", "backward_data", "backward_filter")


class Conv:
    """One layer planned on one device: convolution and bias, then ReLU and a pool x pool maximum where asked for.

    x(C,N,H,W), w(K,C,R,S), b(K) float32; y(K,N,P//pool,Q//pool) float32 and, where pool > 1, arg like y, uint8.

    The plan owns no array; it remembers those of its last calls, which are not checked again. The caller gives every
    call a `workspace`, a float32 vector of at least workspace_bytes() bytes. Layers that run one after another may
    share it; two workers may not, for its content lives until the work of the call is done. `limit_bytes` bounds what
    an algorithm takes of it: a sub-batch whose columns exceed it runs in chunks of images.

    `auto` times the algorithms in the first call of a direction, on the arrays of that call, unless `choices` knows the
    shape. All give equal results up to rounding.
    Raises ValueError for an unknown algorithm, one that does not suit the shape, a limit or a pool out of range.
    """

    def __init__(self, device: Device, shape: ConvShape, algo: str = "auto", limit_bytes: int | None = None,
                 choices: Choices = CHOICES, *, pool: int = 1) -> None:
        if algo not in ALGORITHMS:
            raise ValueError(f"conv: expected an algorithm of {', '.join(ALGORITHMS)}, got '{algo}'")
        check_extents("conv", pool=(pool, 1, min(shape.P, shape.Q, POOL_LIMIT)))
        self.device, self.shape, self.choices = device, shape, choices
        self.pool, self.window = pool, (pool, pool)
        self.y = (shape.K, shape.N, shape.P // pool, shape.Q // pool)
        self.candidates = _candidates(device, shape, algo, limit_bytes, pool)
        self._chosen = dict.fromkeys(DIRECTIONS, self.candidates[0]) if len(self.candidates) == 1 else {}
        self._checked: dict[str, tuple[Array | None, ...]] = {}
        self._needed = 0  # bytes of workspace, when every direction has its algorithm
        self._keys = {direction: _key(device, shape, pool, direction) for direction in DIRECTIONS}

    def workspace_bytes(self) -> int:
        """Bytes that a call may need: of the chosen algorithms, or of all that are still to be timed."""
        if self._needed:
            return self._needed
        possible = {direction: self._possible(direction) for direction in DIRECTIONS}
        whole = 4 * self._whole() if any(not a.fused for found in possible.values() for a in found) else 0
        needed = whole + max(a.workspace_bytes(d) for d, found in possible.items() for a in found)
        if len(self._chosen) == len(DIRECTIONS):
            self._needed = needed
        return needed

    def follow(self, other: Conv) -> None:
        """Use the algorithms that `other`, the same layer for another number of images, has chosen by now.

        So a last, smaller sub-batch is not timed, and needs no more workspace than the whole ones.
        """
        for direction in DIRECTIONS:
            found = other._possible(direction)
            for algorithm in self.candidates if len(found) == 1 else []:
                if algorithm.name == found[0].name:
                    self._chosen[direction] = algorithm
        self._needed = 0

    def describe(self) -> str:
        """One line for people: algorithms and chunks."""
        return " or ".join(a.describe() for a in self.candidates)

    def forward(self, x: Array, w: Array, b: Array, y: Array, relu: bool, workspace: Array,
                arg: Array | None = None) -> None:
        """y = pool(ReLU(w * x + b)), ReLU when `relu`; every element of y and arg is written."""
        shape = self.shape
        if self._is_new("forward", x, w, b, y, workspace, arg):
            self._check(workspace, arg, x=(x, shape.x), w=(w, shape.w), b=(b, (shape.K,)), y=(y, self.y))

        def call(a: Algorithm) -> None:
            if a.fused or arg is None:
                a.forward(x, w, b, y, relu, workspace, arg)
            else:
                whole, rest = self._split(workspace)
                a.forward(x, w, b, whole, relu, rest, None)
                max_pool(self.device, whole, y, arg, self.window, self.window)

        self._run("forward", call)

    def backward(self, x: Array, w: Array, y: Array, dy: Array, dw: Array, db: Array, dx: Array | None, relu: bool,
                 workspace: Array, arg: Array | None = None) -> None:
        """dw, db and, unless it is None, dx from dy, the gradient to forward's y. dy is spent: it may be overwritten.

        dw, db are sums over the sub-batch; every element of dw, db and dx is written.
        """
        shape = self.shape
        if self._is_new("backward", x, w, y, dy, dw, db, dx, workspace, arg):
            outputs = {} if dx is None else {"dx": (dx, shape.x)}
            self._check(workspace, arg, x=(x, shape.x), w=(w, shape.w), y=(y, self.y), dy=(dy, self.y),
                        dw=(dw, shape.w), db=(db, (shape.K,)), **outputs)
        fused = plain = Gradient(dy, y if relu else None, arg)
        if not all(a.fused for direction in DIRECTIONS[1:] for a in self._possible(direction)):
            plain, workspace = self._plain(fused, workspace)
        self._run("backward_filter", lambda a: a.backward_filter(x, fused if a.fused else plain, dw, db, workspace))
        if dx is not None:
            self._run("backward_data", lambda a: a.backward_data(fused if a.fused else plain, w, dx, workspace))

    def backward_data(self, dy: Array, w: Array, dx: Array, workspace: Array) -> None:
        """dx alone, of a layer without ReLU and pool; dy is only read."""
        self._check(workspace, None, dy=(dy, self.shape.y), w=(w, self.shape.w), dx=(dx, self.shape.x))
        self._run("backward_data", lambda a: a.backward_data(Gradient(dy), w, dx, workspace))

    def backward_filter(self, x: Array, dy: Array, dw: Array, db: Array, workspace: Array) -> None:
        """dw and db alone, of a layer without ReLU and pool; dy is only read."""
        shape = self.shape
        self._check(workspace, None, x=(x, shape.x), dy=(dy, shape.y), dw=(dw, shape.w), db=(db, (shape.K,)))
        self._run("backward_filter", lambda a: a.backward_filter(x, Gradient(dy), dw, db, workspace))

    def _whole(self) -> int:
        """Floats of the output before the pool, rounded up to cache lines; 0 without a pool."""
        s = self.shape
        return -(-s.K * s.columns // 16) * 16 if self.pool > 1 else 0

    def _split(self, workspace: Array) -> tuple[Array, Array]:
        """The output before the pool, and the rest of the workspace."""
        return workspace[: self.shape.K * self.shape.columns].reshape(self.shape.y), workspace[self._whole() :]

    def _plain(self, gradient: Gradient, workspace: Array) -> tuple[Gradient, Array]:
        """The gradient to the convolution itself, and what is left of the workspace."""
        dy, y, arg = gradient
        if arg is not None:
            whole, workspace = self._split(workspace)
            max_pool_backward(self.device, dy, arg, whole, self.window, self.window, relu_of=y)
            return Gradient(whole), workspace
        if y is not None:
            relu_backward(self.device, y, dy, dy)
        return Gradient(dy), workspace

    def _is_new(self, call: str, *arrays: Array | None) -> bool:
        """Whether `call` had other arrays the last time: those of a steady step have been checked.

        Arrays that are refused are not remembered: _check raises, and forgets all.
        """
        if call in self._checked and all(map(operator.is_, self._checked[call], arrays)):
            return False
        self._checked[call] = arrays
        return True

    def _check(self, workspace: Array, arg: Array | None, **arrays: tuple[Array, tuple[int, ...]]) -> None:
        try:
            self._expect(workspace, arg, **arrays)
        except (TypeError, ValueError):
            self._checked.clear()
            raise

    def _expect(self, workspace: Array, arg: Array | None, **arrays: tuple[Array, tuple[int, ...]]) -> None:
        for name, (array, shape) in arrays.items():
            if array.dtype != np.float32:
                raise TypeError(f"conv: expected {name} as float32, got {array.dtype}")
            if array.shape != shape:
                raise ValueError(f"conv: expected {name}{shape}, got {tuple(array.shape)}")
            if not array.flags.c_contiguous:
                raise ValueError(f"conv: expected {name} C-contiguous, got strides {array.strides}")
        if (arg is not None) != (self.pool > 1) or not (arg is None or self._is_arg(arg)):
            got = "none" if arg is None else f"{arg.dtype} {tuple(arg.shape)}"
            raise ValueError(f"conv: expected contiguous arg{self.y} as uint8 where pool > 1, got {got} "
                             f"with pool {self.pool}")
        needed = self.workspace_bytes()
        if (workspace.ndim != 1 or workspace.dtype != np.float32 or workspace.nbytes < needed
                or not workspace.flags.c_contiguous):
            raise ValueError(f"conv: expected a float32 workspace vector of at least {needed} bytes, "
                             f"got {workspace.dtype} {workspace.shape}")

    def _is_arg(self, arg: Array) -> bool:
        return arg.shape == self.y and arg.dtype == np.uint8 and arg.flags.c_contiguous

    def _possible(self, direction: str) -> list[Algorithm]:
        """The chosen algorithm of a direction, or all candidates while none is chosen."""
        if direction not in self._chosen:
            known = self.choices.get(self._keys[direction])
            for algorithm in self.candidates if known else []:
                if algorithm.name == known:
                    self._chosen[direction] = algorithm
        return [self._chosen[direction]] if direction in self._chosen else self.candidates

    def _run(self, direction: str, call: Callable[[Algorithm], None]) -> None:
        if direction not in self._chosen:
            self._choose(direction, call)
        call(self._chosen[direction])

    def _choose(self, direction: str, call: Callable[[Algorithm], None]) -> None:
        with self.choices.measuring:  # a worker beside this one may just have timed the same shape
            if len(self._possible(direction)) > 1:
                best = self._chosen[direction] = fastest(self.device, self.candidates, call)
                self.choices.put(self._keys[direction], best.name)


def _key(device: Device, shape: ConvShape, pool: int, direction: str) -> str:
    sizes = (*shape.x, *shape.w, *shape.stride, *shape.pad, pool)
    return f"{device_tag(device)} {direction} {'x'.join(map(str, sizes))}"


def _candidates(device: Device, shape: ConvShape, algo: str, limit_bytes: int | None, pool: int) -> list[Algorithm]:
    """What `algo` stands for on this shape. Raises ValueError when nothing suits it and the limit."""
    found: list[Algorithm] = []
    if algo == "auto":
        for name in MEASURED["cuda" if device.mode == "simt" else device.kind]:
            with contextlib.suppress(ValueError):
                found.append(MAKERS[name](device, shape, limit_bytes, pool))
        algo = "explicit"  # whose only condition is the limit
    return found or [MAKERS[algo](device, shape, limit_bytes, pool)]
