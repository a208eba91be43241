"""The host device in simt mode: true CUDA semantics, slowly, for tests. See host_simt.h for how."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from . import source
from .device import DEFAULT_BLOCK, Work, plan_launch
from .host import HostDevice, address, c_types
from .source import Signature

ORDERS = {"forward": 0, "reverse": 1, "shuffle": 2}
_FAULTS = {1: "a write before the start of", 2: "a write past the end of", 3: "a write to the constant"}


class SimtDevice(HostDevice):
    """Runs every thread of a block as a fiber, `block` threads a block unless the kernel names its own tiles.

    Threads and blocks run in `order`: 'forward', 'reverse' or 'shuffle' (by `seed`). `sanitize` builds the kernels with
    AddressSanitizer and UBSan; the process must then run under libasan (make sanitize does that). `text` replaces the
    family's own CUDA text. A launch raises RuntimeError when a kernel writes outside its arrays or threads wait for ever.
    """

    mode = "simt"

    def __init__(self, *, block: int = DEFAULT_BLOCK, order: str = "forward", seed: int = 0, sanitize: bool = False,
                 text: str | None = None) -> None:
        super().__init__(0, threads=1)
        if order not in ORDERS:
            raise ValueError(f"simt device: expected order of {', '.join(ORDERS)}, got '{order}'")
        self.name = f"simt:{block}/{order}"
        self.block, self.order, self.seed, self.sanitize, self.text = block, order, seed, sanitize, text

    def signature(self, family: str, kernel: str) -> Signature:
        """The kernel's signature, from the replacing text where there is one."""
        return source.parse_signatures(self.text)[kernel] if self.text else super().signature(family, kernel)

    def _run(self, family: str, signature: Signature, work: Work, values: list[Any], block: int | None) -> None:
        text = self.text or source.read(f"{family}.cu")
        library = _library(family, text, self.sanitize)
        grid, threads = plan_launch(work, block or self.block)
        shape = (ctypes.c_uint * 6)(*grid, *threads)
        guarded = _guard(library, signature, values)
        raw = [guarded[address(v)][0] if isinstance(v, np.ndarray) else v for v in values]
        function = library[f"launch_{signature.name}"]
        function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, *c_types(signature)]
        stuck = function(shape, ORDERS[self.order], self.seed, *raw)
        faults = _unguard(library, guarded)
        if stuck:
            raise RuntimeError(f"{signature.name}: expected every thread at the barrier, got threads that wait for ever")
        if faults:
            raise RuntimeError(f"{signature.name}: expected writes inside the arrays, got {'; '.join(faults)}")


@functools.cache
def _library(family: str, text: str, sanitize: bool) -> ctypes.CDLL:
    library = source.build_kernel_text(family, text, "simt", sanitize)
    library.simt_guard.restype = ctypes.c_void_p
    library.simt_guard.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.simt_unguard.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def _guard(library: ctypes.CDLL, signature: Signature, values: list[Any]) -> dict[int, tuple[int, int, bool, str]]:
    """Guarded copies by address: (copy, bytes, constant, name). The same array given twice stays one array."""
    guarded: dict[int, tuple[int, int, bool, str]] = {}
    for parameter, value in zip(signature.parameters, values, strict=True):
        if isinstance(value, np.ndarray):
            where = address(value)
            if where in guarded:
                copy, size, constant, name = guarded[where]
                guarded[where] = (copy, size, constant and parameter.constant, name)
            else:
                copy = library.simt_guard(where, value.nbytes)
                guarded[where] = (copy, value.nbytes, parameter.constant, parameter.name)
    return guarded


def _unguard(library: ctypes.CDLL, guarded: dict[int, tuple[int, int, bool, str]]) -> list[str]:
    faults = []
    for where, (copy, size, constant, name) in guarded.items():
        if fault := library.simt_unguard(copy, where, size, constant):
            faults.append(f"{_FAULTS[fault]} {name}")
    return faults
