"""What each case is compared with: BLAS doing the matrix product inside it, or plain copies of as many bytes.

All with the threads of the device.
"""

from __future__ import annotations

from ..kernels import blas
from ..kernels.device import Array, Device
from .copies import Copy, copies
from .op import Case, Product
from .timing import Call


def open_library(device: Device, case: Case, copy_method: str) -> dict[str, Call]:
    """Calls by name, the library first: BLAS; or NumPy's copy (on cuda the device's), and the copy by `copy_method`.

    A copy reads half of the bytes that the case must move and writes the other half.
    """
    if case.op.product:
        return {"cuBLAS" if device.kind == "cuda" else "BLAS": _product(device, case.op.product(case.problem))}
    source, target = (device.zeros(max(1, case.bytes_moved // 8)) for _ in range(2))
    ways = copies(device, target, source)
    library = "device copy" if device.kind == "cuda" else "NumPy copy"
    return {name: _numbered(ways[name]) for name in dict.fromkeys((library, copy_method))}


def _numbered(copy: Copy) -> Call:
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
