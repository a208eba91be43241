"""Convolution: one op, two algorithms (`explicit`, `implicit`) and a measured choice of them (`auto`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from .conv_choice import CHOICES, Choices, device_tag, fastest
from .conv_explicit import Explicit
from .conv_implicit import implicit
from .conv_shape import ConvShape, expect_shape
from .device import Array, Device

ALGORITHMS = ("explicit", "implicit", "auto")
DIRECTIONS = ("forward", "backward_data", "backward_filter")


class Algorithm(Protocol):
    """What every algorithm offers; shapes as in Conv, already checked."""

    name: str

    def workspace_bytes(self, direction: str) -> int: ...
    def describe(self) -> str: ...
    def forward(self, x: Array, w: Array, b: Array, y: Array, relu: bool, workspace: Array) -> None: ...
    def backward_data(self, dy: Array, w: Array, dx: Array, workspace: Array) -> None: ...
    def backward_filter(self, x: Array, dy: Array, dw: Array, db: Array, workspace: Array) -> None: ...


class Conv:
    """One convolution layer planned on one device: x(C,N,H,W), w(K,C,R,S), b(K), y(K,N,P,Q), all float32.

    The plan holds no array. The caller gives every call a `workspace`, a float32 vector of at least
    workspace_bytes() bytes. Layers that run one after another may share it; two workers may not, for its
    content lives until the work of the call is done. `limit_bytes` bounds the workspace: a sub-batch whose
    columns exceed it runs in chunks of images.

    `auto` times both algorithms in the first call of a direction, on the arrays of that call, unless
    `choices` knows the shape. Both give equal results up to rounding.
    Raises ValueError for an unknown algorithm or a limit that is too small.
    """

    def __init__(self, device: Device, shape: ConvShape, algo: str = "auto", limit_bytes: int | None = None,
                 choices: Choices = CHOICES) -> None:
        if algo not in ALGORITHMS:
            raise ValueError(f"conv: expected an algorithm of {', '.join(ALGORITHMS)}, got '{algo}'")
        self.device, self.shape, self.algo, self.choices = device, shape, algo, choices
        self.candidates = _candidates(device, shape, algo, limit_bytes)
        self._chosen: dict[str, Algorithm] = {}
        self._keys = {direction: _key(device, shape, direction) for direction in DIRECTIONS}

    def workspace_bytes(self) -> int:
        """Bytes that a call may need: of the chosen algorithms, or of all that are still to be timed."""
        return max(a.workspace_bytes(d) for d in DIRECTIONS for a in self._possible(d))

    def describe(self) -> str:
        """One line for people: algorithms and chunks."""
        return " or ".join(a.describe() for a in self.candidates)

    def forward(self, x: Array, w: Array, b: Array, y: Array, relu: bool, workspace: Array) -> None:
        """y = w * x + b, with ReLU when `relu`; every element of y is written."""
        shape = self.shape
        self._check(workspace, x=(x, shape.x), w=(w, shape.w), b=(b, (shape.K,)), y=(y, shape.y))
        self._run("forward", lambda a: a.forward(x, w, b, y, relu, workspace))

    def backward_data(self, dy: Array, w: Array, dx: Array, workspace: Array) -> None:
        """dx = gradient to the input; every element of dx is written."""
        self._check(workspace, dy=(dy, self.shape.y), w=(w, self.shape.w), dx=(dx, self.shape.x))
        self._run("backward_data", lambda a: a.backward_data(dy, w, dx, workspace))

    def backward_filter(self, x: Array, dy: Array, dw: Array, db: Array, workspace: Array) -> None:
        """dw, db = gradients to filters and bias, summed over the sub-batch; every element is written."""
        shape = self.shape
        self._check(workspace, x=(x, shape.x), dy=(dy, shape.y), dw=(dw, shape.w), db=(db, (shape.K,)))
        self._run("backward_filter", lambda a: a.backward_filter(x, dy, dw, db, workspace))

    def _check(self, workspace: Array, **arrays: tuple[Array, tuple[int, ...]]) -> None:
        for name, (array, _) in arrays.items():
            if array.dtype != np.float32:
                raise TypeError(f"conv: expected {name} as float32, got {array.dtype}")
            if not array.flags.c_contiguous:
                raise ValueError(f"conv: expected {name} C-contiguous, got strides {array.strides}")
        expect_shape("conv", **{name: (array.shape, expected) for name, (array, expected) in arrays.items()})
        needed = self.workspace_bytes()
        if workspace.ndim != 1 or workspace.dtype != np.float32 or workspace.nbytes < needed:
            raise ValueError(f"conv: expected a float32 workspace vector of at least {needed} bytes, "
                             f"got {workspace.dtype} {workspace.shape}")

    def _possible(self, direction: str) -> list[Algorithm]:
        """The chosen algorithm of a direction, or all candidates while none is chosen."""
        if len(self.candidates) == 1 or direction in self._chosen:
            return [self._chosen.get(direction, self.candidates[0])]
        known = self.choices.get(self._keys[direction])
        for algorithm in self.candidates:
            if algorithm.name == known:
                self._chosen[direction] = algorithm
                return [algorithm]
        return self.candidates

    def _run(self, direction: str, call: Callable[[Algorithm], None]) -> None:
        if len(self._possible(direction)) > 1:
            with self.choices.measuring:  # a worker beside this one may just have timed the same shape
                if len(self._possible(direction)) > 1:
                    self.choices.put(self._keys[direction], fastest(self.device, self.candidates, call).name)
        call(self._possible(direction)[0])


def _key(device: Device, shape: ConvShape, direction: str) -> str:
    sizes = (*shape.x, *shape.w, *shape.stride, *shape.pad)
    return f"{device_tag(device)} {direction} {'x'.join(map(str, sizes))}"


def _candidates(device: Device, shape: ConvShape, algo: str, limit_bytes: int | None) -> list[Algorithm]:
    """Algorithms that suit the shape and the limit. Raises ValueError, with the last reason, when none does."""
    makers: dict[str, Callable[..., Algorithm]] = {"explicit": Explicit, "implicit": implicit}
    found: list[Algorithm] = []
    for name in makers if algo == "auto" else (algo,):
        try:
            found.append(makers[name](device, shape, limit_bytes))
        except ValueError as error:
            reason = error
    if not found:
        raise reason
    return found
