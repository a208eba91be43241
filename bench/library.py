"""What each case is compared with: BLAS doing the matrix product inside it, or NumPy copying as many bytes.

Both with the threads of the device.
"""

from __future__ import annotations

from collections.abc import Callable

from ..kernels import blas
from ..kernels.device import Array, Device
from .copies import numpy_copy
from .op import Case, Product

Call = Callable[[int], None]


def open_library(device: Device, case: Case) -> tuple[str, Call]:
    """(name, call) of the library's way to do the work of `case` on the same device."""
    if case.op.product:
        return ("cuBLAS" if device.kind == "cuda" else "BLAS"), _product(device, case.op.product(case.problem))
    if device.kind == "cuda":
        return "device copy", _copy(device, case.bytes_moved)
    return "NumPy copy", _copy(device, case.bytes_moved)


def _copy(device: Device, bytes_moved: int) -> Call:
    """Half of the bytes read, half of them written."""
    source, target = (device.zeros(max(1, bytes_moved // 8)) for _ in range(2))
    if device.kind == "cuda":
        return lambda number: device.copy(target, source)
    copy = numpy_copy(device.threads, target, source)
    return lambda number: copy()


def _product(device: Device, p: Product) -> Call:
    """The product in `parts` along its long axis, as many columns at a time as an explicit convolution would take."""
    along_k = p.trans_b and p.parts > 1
    long = p.k if along_k else p.n
    part = -(-long // p.parts)
    n, k = (p.n, part) if along_k else (part, p.k)
    a = _filled(device, (k, p.m) if p.trans_a else (p.m, k))
    b = _filled(device, (n, k) if p.trans_b else (k, n))
    c = device.zeros((p.m, n))
    whole, rest = divmod(long, part)

    def run(number: int) -> None:
        for i in range(whole):
            _sgemm(device, a, b, c, p, float(along_k and i > 0))
        if rest:
            _rest(device, a, b, c, p, rest, along_k)

    return run


def _rest(device: Device, a: Array, b: Array, c: Array, p: Product, rest: int, along_k: bool) -> None:
    if along_k:
        _sgemm(device, a[:, :rest], b[:, :rest], c, p, 1.0)
    else:
        _sgemm(device, a, b[:rest] if p.trans_b else b[:, :rest], c[:, :rest], p, 0.0)


def _sgemm(device: Device, a: Array, b: Array, c: Array, p: Product, beta: float) -> None:
    if device.kind == "cuda":
        device.sgemm(a, b, c, trans_a=p.trans_a, trans_b=p.trans_b, beta=beta)
    else:
        blas.sgemm(a, b, c, p.trans_a, p.trans_b, 1.0, beta, device.threads)


def _filled(device: Device, shape: tuple[int, int]) -> Array:
    array = device.empty(shape)
    array.fill(0.5)
    return array
