"""What every op must give, in float64 NumPy, written without a look at the kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..kernels.conv_shape import ConvShape

Array = np.ndarray
Pair = tuple[int, int]


def double(x: Array) -> Array:
    """x in float64."""
    return x.astype(np.float64)


def windows(x: Array, window: Pair, stride: Pair, pad: Pair, outside: float = 0.0) -> Array:
    """View (..., P, Q, R, S) of all windows of x (..., H, W), `outside` standing beyond its border."""
    wide = [(0, 0)] * (x.ndim - 2) + [(pad[0], pad[0]), (pad[1], pad[1])]
    padded = np.pad(x, wide, constant_values=outside) if any(pad) else x
    every = np.lib.stride_tricks.sliding_window_view(padded, window, axis=(-2, -1))
    return every[..., :: stride[0], :: stride[1], :, :]


def im2col(x: Array, s: ConvShape) -> Array:
    """Columns (C*R*S, N*P*Q) of x (C,N,H,W), in x's own type: nothing is computed."""
    return windows(x, (s.R, s.S), s.stride, s.pad).transpose(0, 4, 5, 1, 2, 3).reshape(s.rows, -1)


def col2im(col: Array, s: ConvShape) -> Array:
    """dx (C,N,H,W): every column entry added where im2col read it."""
    images = col.shape[1] // (s.P * s.Q)
    taps = col.reshape(s.C, s.R, s.S, images, s.P, s.Q)
    (sh, sw), (ph, pw) = s.stride, s.pad
    padded = np.zeros((s.C, images, s.H + 2 * ph, s.W + 2 * pw))
    for r in range(s.R):
        for t in range(s.S):
            padded[:, :, r : r + sh * s.P : sh, t : t + sw * s.Q : sw] += taps[:, r, t]
    return padded[:, :, ph : ph + s.H, pw : pw + s.W]


def _images(s: ConvShape) -> Iterator[tuple[int, ConvShape]]:
    """One image at a time: columns in float64 of a whole sub-batch may not fit."""
    one = ConvShape(s.C, 1, s.H, s.W, s.K, s.R, s.S, s.stride, s.pad)
    yield from ((n, one) for n in range(s.N))


def conv_forward(x: Array, w: Array, b: Array, s: ConvShape, relu: bool) -> Array:
    """y (K,N,P,Q) = w * x + b, and max(y, 0) if `relu`."""
    filters, y = double(w).reshape(s.K, -1), np.empty(s.y)
    for n, one in _images(s):
        y[:, n] = (filters @ im2col(double(x[:, n : n + 1]), one)).reshape(s.K, s.P, s.Q)
    y += double(b)[:, None, None, None]
    return np.maximum(y, 0) if relu else y


def conv_backward_data(dy: Array, w: Array, s: ConvShape) -> Array:
    """dx (C,N,H,W)."""
    filters, dx = double(w).reshape(s.K, -1), np.empty(s.x)
    for n, one in _images(s):
        dx[:, n : n + 1] = col2im(filters.T @ double(dy[:, n]).reshape(s.K, -1), one)
    return dx


def conv_backward_filter(x: Array, dy: Array, s: ConvShape) -> tuple[Array, Array]:
    """dw (K,C,R,S) and db (K)."""
    dw = np.zeros((s.K, s.rows))
    for n, one in _images(s):
        dw += double(dy[:, n]).reshape(s.K, -1) @ im2col(double(x[:, n : n + 1]), one).T
    return dw.reshape(s.w), double(dy).sum(axis=(1, 2, 3))


def max_pool(x: Array, window: Pair, stride: Pair, pad: Pair) -> tuple[Array, Array]:
    """y (C,N,P,Q) and the index (row by row) of the first maximum inside each window."""
    every = windows(x, window, stride, pad, -np.inf)
    flat = every.reshape(*every.shape[:4], -1)
    arg = flat.argmax(axis=-1)
    return np.take_along_axis(flat, arg[..., None], -1)[..., 0], arg


def max_pool_backward(dy: Array, arg: Array, shape: tuple[int, ...], window: Pair, stride: Pair, pad: Pair) -> Array:
    """dx of `shape` (C,N,H,W): dy of each window added at its maximum."""
    C, N, H, W = shape
    P, Q = dy.shape[2:]
    h = np.arange(P)[:, None] * stride[0] - pad[0] + arg.astype(np.int64) // window[1]
    w = np.arange(Q)[None, :] * stride[1] - pad[1] + arg.astype(np.int64) % window[1]
    plane = np.arange(C * N).reshape(C, N, 1, 1)
    return np.bincount(((plane * H + h) * W + w).ravel(), double(dy).ravel(), C * N * H * W).reshape(shape)


def softmax(z: Array) -> Array:
    """p (K,N): probabilities of the columns of z."""
    e = np.exp(double(z) - z.max(axis=0))
    return e / e.sum(axis=0)


def cross_entropy(z: Array, labels: Array) -> Array:
    """Loss (N) of the columns of z (K,N)."""
    most = double(z.max(axis=0))
    return np.log(np.exp(double(z) - most).sum(axis=0)) + most - z[labels, np.arange(len(labels))]


def cross_entropy_gradient(z: Array, labels: Array, scale: float) -> Array:
    """scale * (p - onehot(label)), (K,N)."""
    p = softmax(z)
    p[labels, np.arange(len(labels))] -= 1
    return scale * p


def label_rank(z: Array, labels: Array) -> Array:
    """How many classes come before the label's in (K,N): greater, or equal and of a smaller number."""
    own = z[labels, np.arange(len(labels))]
    smaller = np.arange(len(z))[:, None] < labels
    return (z > own).sum(axis=0) + ((z == own) & smaller).sum(axis=0)


def deform(images: Array, affine: Array, mean: Array, std: Array, size: Pair) -> Array:
    """x (C,N,P,Q): bilinear samples of images (N,H,W,C) at affine positions, border repeated, then normalised."""
    N, H, W, C = images.shape
    x = np.empty((C, N, *size))
    p, q = np.meshgrid(np.arange(size[0]), np.arange(size[1]), indexing="ij")
    for n, (a, b, c, d, e, f) in enumerate(double(affine)):
        w, h = (a * q + b * p + c).clip(0, W - 1), (d * q + e * p + f).clip(0, H - 1)
        left, top = np.floor(w).astype(int), np.floor(h).astype(int)
        right, bottom = np.minimum(left + 1, W - 1), np.minimum(top + 1, H - 1)
        u, v, image = (w - left)[..., None], (h - top)[..., None], double(images[n])
        above = image[top, left] * (1 - u) + image[top, right] * u
        below = image[bottom, left] * (1 - u) + image[bottom, right] * u
        x[:, n] = ((above * (1 - v) + below * v) / 255).transpose(2, 0, 1)
    return (x - double(mean)[:, None, None, None]) / double(std)[:, None, None, None]


def philox(counters: Array, key: int) -> Array:
    """(n,4) words of Philox4x32-10 at the 128-bit counters (n,4) uint64. Source: Salmon et al., SC 2011."""
    low, (key0, key1) = np.uint64(0xFFFFFFFF), (key & 0xFFFFFFFF, key >> 32)
    a, b, c, d = counters.T
    for _ in range(10):
        left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (right >> np.uint64(32)) ^ b ^ np.uint64(key0), right & low, \
            (left >> np.uint64(32)) ^ d ^ np.uint64(key1), left & low
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([a, b, c, d], axis=1)


def dropout(x: Array, seed: int, offset: int, rate: float) -> Array:
    """x / (1 - rate) where word i of the stream (seed, offset) reaches rate * 2^32, else 0."""
    groups = np.arange(-(-x.size // 4), dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    counters = np.stack([groups & low, groups >> np.uint64(32), np.full_like(groups, offset & 0xFFFFFFFF),
                         np.full_like(groups, offset >> 32)], axis=1)
    kept = philox(counters, seed).ravel()[: x.size] >= round(rate * 2**32)
    return np.where(kept, double(x) / (1 - rate), 0.0)
