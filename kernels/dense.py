"""Dense layers: one product a direction, by BLAS or, for few columns on the host, by our own register tiles."""

from __future__ import annotations

import numpy as np

from . import host_gemm
from .activation import relu_backward
from .bias import add_bias, bias_gradient, bias_relu
from .conv_shape import expect_shape
from .device import Array, Device

FEW = 64  # columns up to which the products are bound by reading w once, and BLAS spends more than that


class Dense:
    """One layer planned on one device: y(K,N) = w(K,D) x(D,N) + b(K), then ReLU where asked for; all float32.

    The plan holds no array; `workspace` is a float32 vector of at least workspace_bytes() bytes that belongs to the
    caller as that of Conv does.
    """

    def __init__(self, device: Device, K: int, D: int, N: int) -> None:
        self.device, self.K, self.D, self.N = device, K, D, N
        self.own = device.kind == "host" and device.mode == "fast" and 0 < N <= FEW

    def workspace_bytes(self) -> int:
        """Bytes that a call needs."""
        if not self.own:
            return 0
        K, D, N, threads = self.K, self.D, self.N, self.device.threads
        return max(host_gemm.sgemm_workspace(*mnk, threads) for mnk in ((K, N, D), (K, D, N), (D, N, K)))

    def forward(self, x: Array, w: Array, b: Array, y: Array, relu: bool, workspace: Array) -> None:
        """y = w x + b, then ReLU when `relu`; every element of y is written."""
        self._check(x=(x, (self.D, self.N)), w=(w, (self.K, self.D)), y=(y, (self.K, self.N)))
        self._product(w, x, y, workspace)
        (bias_relu if relu else add_bias)(self.device, y, b)

    def backward(self, x: Array, w: Array, y: Array, dy: Array, dw: Array, db: Array, dx: Array | None, relu: bool,
                 workspace: Array) -> None:
        """dw, db and, unless it is None, dx from dy, which may be overwritten; sums over the sub-batch."""
        self._check(x=(x, (self.D, self.N)), dy=(dy, (self.K, self.N)), dw=(dw, (self.K, self.D)))
        if relu:
            relu_backward(self.device, y, dy, dy)
        self._product(dy, x, dw, workspace, trans_b=True)
        bias_gradient(self.device, dy, db)
        if dx is not None:
            self._product(w, dy, dx, workspace, trans_a=True)

    def _product(self, a: Array, b: Array, c: Array, workspace: Array, trans_a: bool = False,
                 trans_b: bool = False) -> None:
        if self.own:
            host_gemm.sgemm(self.device, a, b, c, workspace.view(np.uint8), trans_a=trans_a, trans_b=trans_b)
        else:
            self.device.sgemm(a, b, c, trans_a=trans_a, trans_b=trans_b)

    def _check(self, **pairs: tuple[Array, tuple[int, ...]]) -> None:
        expect_shape("dense", **{name: (array.shape, shape) for name, (array, shape) in pairs.items()})
