"""A host device that checks every launch and runs none: it records what a step calls, and times the calls alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..kernels.device import Array, Work, check_gemm
from ..kernels.host import HostDevice
from ..kernels.source import Signature


@dataclass(frozen=True)
class Launch:
    """One recorded launch: family (.cu file), kernel and its arguments by their names in the C text, in lower case."""

    family: str
    kernel: str
    arguments: dict[str, Any]


class DryDevice(HostDevice):
    """Arrays are never touched, so that a net of any size costs no memory; `launches` grows by every call."""

    def __init__(self, kind: Literal["host", "cuda"] = "host", threads: int = 1) -> None:
        super().__init__(threads=threads)
        self.kind = kind
        self.launches: list[Launch] = []

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any = np.float32) -> np.ndarray:
        """Array of zeros that takes no memory until it is written."""
        return np.zeros(shape, dtype)

    def upload(self, array: np.ndarray) -> np.ndarray:
        """Array of that shape."""
        return np.zeros(array.shape, array.dtype)

    def copy(self, dst: Array, src: Array) -> None:
        """Copies nothing."""

    def download(self, array: Array) -> np.ndarray:
        """Zeros of that shape."""
        return np.zeros(array.shape, array.dtype)

    def _run(self, family: str, signature: Signature, work: Work, values: list[Any], block: int | None) -> None:
        names = [parameter.name.lower() for parameter in signature.parameters]
        self.launches.append(Launch(family, signature.name, dict(zip(names, values, strict=True))))

    def sgemm(self, a: Array, b: Array, c: Array, *, trans_a: bool = False, trans_b: bool = False,
              alpha: float = 1.0, beta: float = 0.0) -> None:
        """Record c(m,n) = alpha op(a)(m,k) op(b)(k,n) + beta c."""
        m, n, k = check_gemm(a, b, c, trans_a, trans_b)
        arguments = {"m": m, "n": n, "k": k, "ta": trans_a, "tb": trans_b, "add": beta != 0}
        self.launches.append(Launch("gemm", "sgemm", arguments))
