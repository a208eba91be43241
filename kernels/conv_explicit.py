"""Explicit convolution: columns by im2col, then one sgemm of the sub-batch, or of as many images as fit."""

from __future__ import annotations

from collections.abc import Iterator

from . import bias
from .conv_algorithm import Gradient
from .conv_shape import ConvShape
from .device import Array, Device
from .im2col import col2im, im2col

DEFAULT_LIMIT_BYTES = {"host": 64 << 20, "cuda": 1 << 30}  # long enough GEMMs, little memory


class Explicit:
    """y(K, N*P*Q) = w(K, C*R*S) @ col(C*R*S, N*P*Q), in chunks of whole images whose columns fit the limit.

    Raises ValueError when `limit_bytes` is less than the columns of one image.
    Source: Chellapilla et al. 2006.
    """

    name = "explicit"
    fused = False

    def __init__(self, device: Device, shape: ConvShape, limit_bytes: int | None, pool: int) -> None:
        self.device, self.shape = device, shape
        self.images = images_per_chunk(shape, limit_bytes, DEFAULT_LIMIT_BYTES[device.kind])

    def workspace_bytes(self, direction: str) -> int:
        """Bytes of the column buffer; every direction needs the same."""
        return self.images * image_bytes(self.shape)

    def describe(self) -> str:
        """One line for people: how many images' columns are held at a time, and their bytes."""
        held = "all" if self.images == self.shape.N else f"{self.images} of {self.shape.N}"
        return f"explicit, columns of {held} images at a time ({self.workspace_bytes('forward'):,} bytes)"

    def forward(self, x: Array, w: Array, b: Array, y: Array, relu: bool, workspace: Array, arg: Array | None) -> None:
        """y = w * x + b, then ReLU."""
        weights, out = self._matrix(w), y.reshape(self.shape.K, self.shape.columns)
        for first, columns, col in self._chunks(workspace):
            im2col(self.device, x, col, self.shape, first)
            self.device.sgemm(weights, col, out[:, columns])
        (bias.bias_relu if relu else bias.add_bias)(self.device, out, b)

    def backward_data(self, gradient: Gradient, w: Array, dx: Array, workspace: Array) -> None:
        """dx = the gather of w^T @ dy."""
        weights, dy = self._matrix(w), gradient.dy.reshape(self.shape.K, self.shape.columns)
        for first, columns, col in self._chunks(workspace):
            self.device.sgemm(weights, dy[:, columns], col, trans_a=True)
            col2im(self.device, col, dx, self.shape, first)

    def backward_filter(self, x: Array, gradient: Gradient, dw: Array, db: Array, workspace: Array) -> None:
        """dw = dy @ col^T, summed over the chunks in order; db = row sums of dy."""
        weights, dy = self._matrix(dw), gradient.dy.reshape(self.shape.K, self.shape.columns)
        for first, columns, col in self._chunks(workspace):
            im2col(self.device, x, col, self.shape, first)
            self.device.sgemm(dy[:, columns], col, weights, trans_b=True, beta=float(first > 0))
        bias.bias_gradient(self.device, dy, db)

    def _matrix(self, w: Array) -> Array:
        return w.reshape(self.shape.K, self.shape.rows)

    def _chunks(self, workspace: Array) -> Iterator[tuple[int, slice, Array]]:
        """(first image, columns of y, column buffer) of each chunk; an empty one when there is no image."""
        shape = self.shape
        plane = shape.P * shape.Q
        for first in range(0, max(shape.N, 1), max(self.images, 1)):
            columns = min(self.images, shape.N - first) * plane
            col = workspace[: shape.rows * columns].reshape(shape.rows, columns)
            yield first, slice(first * plane, first * plane + columns), col


def image_bytes(shape: ConvShape) -> int:
    """Bytes of the columns of one image."""
    return 4 * shape.rows * shape.P * shape.Q


def images_per_chunk(shape: ConvShape, limit_bytes: int | None, default_bytes: int) -> int:
    """Most images whose columns fit `limit_bytes`; without a limit `default_bytes`, but at least one."""
    one = image_bytes(shape)
    if limit_bytes is not None and limit_bytes < one:
        raise ValueError(f"conv: expected a workspace of at least {one} bytes (one image), got {limit_bytes}")
    most = max(1, (default_bytes if limit_bytes is None else limit_bytes) // one)
    return min(shape.N, most)
