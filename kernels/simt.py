"""The host device in simt mode: true CUDA semantics, slowly, for tests. See host_simt.h for how."""

from __future__ import annotations

import ctypes
import functools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import source
from .device import DEFAULT_BLOCK, Work, plan_launch
from .host import HostDevice, address, c_types
from .source import Parameter, Signature

ORDERS = {"forward": 0, "reverse": 1, "shuffle": 2}
_FAULTS = {1: "a write before the start of", 2: "a write past the end of", 3: "a write to the constant"}
_STUCK = {1: "threads that wait for ever", 2: "threads that ended before a barrier where others wait"}


class SimtDevice(HostDevice):
    """Runs every thread of a block as a fiber, `block` threads a block unless the kernel names its own tiles.

    Threads and blocks run in `order`: 'forward', 'reverse' or 'shuffle' (by `seed`). `sanitize` builds the
    kernels with AddressSanitizer and UBSan; the process must then run under libasan (as in make sanitize).
    `text` replaces the family's own CUDA text. A launch raises RuntimeError when a kernel writes outside its
    arrays, when threads wait for ever, and when arrays partly overlap.
    """

    mode = "simt"

    def __init__(self, *, block: int = DEFAULT_BLOCK, order: str = "forward", seed: int = 0,
                 sanitize: bool = False, text: str | None = None) -> None:
        super().__init__(0, threads=1)
        if order not in ORDERS:
            raise ValueError(f"simt device: expected order of {', '.join(ORDERS)}, got '{order}'")
        if sanitize and not hasattr(ctypes.CDLL(None), "__asan_init"):
            raise RuntimeError("simt device: expected a process under libasan, got none; run make sanitize")
        self.name = f"simt:{block}/{order}"
        self.block, self.order, self.seed, self.sanitize, self.text = block, order, seed, sanitize, text

    def signature(self, family: str, kernel: str) -> Signature:
        """The kernel's signature, from the replacing text where there is one."""
        return source.parse_signatures(self.text)[kernel] if self.text else super().signature(family, kernel)

    def _run(self, family: str, signature: Signature, work: Work, values: list[Any],
             block: int | None) -> None:
        library = _library(family, self.text or source.read(f"{family}.cu"), self.sanitize)
        grid, threads = plan_launch(work, block or self.block)
        guards = _guard(library, signature, values)
        raw = [guards[address(v)].copy if isinstance(v, np.ndarray) else v for v in values]
        function = library[f"launch_{signature.name}"]
        function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, *c_types(signature)]
        stuck = function((ctypes.c_uint * 6)(*grid, *threads), ORDERS[self.order], self.seed, *raw)
        faults = _unguard(library, guards)
        if stuck:
            raise RuntimeError(f"{signature.name}: expected all threads at the barrier, got {_STUCK[stuck]}")
        if faults:
            raise RuntimeError(f"{signature.name}: expected writes inside arrays, got {'; '.join(faults)}")


@dataclass
class _Guard:
    """A guarded copy of an array: the parameters that take it, its bytes, where the copy is."""

    parameters: list[Parameter] = field(default_factory=list)
    size: int = 0
    copy: int = 0

    @property
    def name(self) -> str:
        return self.parameters[0].name

    @property
    def constant(self) -> bool:
        return all(parameter.constant for parameter in self.parameters)


@functools.cache
def _library(family: str, text: str, sanitize: bool) -> ctypes.CDLL:
    library = source.build_kernel_text(family, text, "simt", sanitize)
    library.simt_guard.restype = ctypes.c_void_p
    library.simt_guard.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.simt_unguard.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def _guard(library: ctypes.CDLL, signature: Signature, values: list[Any]) -> dict[int, _Guard]:
    """Guarded copies by address, so that an array given twice stays one array."""
    guards: dict[int, _Guard] = defaultdict(_Guard)
    for parameter, value in zip(signature.parameters, values, strict=True):
        if isinstance(value, np.ndarray):
            guard = guards[address(value)]
            guard.size = max(guard.size, _reach(value))
            guard.parameters.append(parameter)
    _check_apart(signature.name, guards)
    for where, guard in guards.items():
        guard.copy = library.simt_guard(where, guard.size)
    return guards


def _reach(array: np.ndarray) -> int:
    """Bytes from the first element to behind the last; more than nbytes where rows lie apart."""
    return sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)) + array.itemsize \
        if array.size else 0


def _check_apart(kernel: str, guards: dict[int, _Guard]) -> None:
    """Arrays must not overlap in part, and not at all where one is __restrict__ and one is written."""
    end, before = 0, ""
    for where, guard in sorted(guards.items(), key=lambda item: item[0]):
        names = [parameter.name for parameter in guard.parameters]
        alone = any(parameter.alone for parameter in guard.parameters)
        if len(names) > 1 and guard.size and alone and not guard.constant:
            raise RuntimeError(f"{kernel}: expected arrays apart, for one is __restrict__, got {' = '.join(names)}")
        if where < end and guard.size:
            raise RuntimeError(f"{kernel}: expected arrays apart or equal, got {guard.name} inside {before}")
        if where + guard.size > end:
            end, before = where + guard.size, guard.name


def _unguard(library: ctypes.CDLL, guards: dict[int, _Guard]) -> list[str]:
    found = [(library.simt_unguard(g.copy, where, g.size, g.constant), g.name) for where, g in guards.items()]
    return [f"{_FAULTS[fault]} {name}" for fault, name in found if fault]
