"""Images: uint8 (N,H,W,C) to float32 (C,N,H,W), crop, mirror, and SPRINT's "deform" (kernels of image.cu).

Values are in units of 0..1: x = (u / 255 - mean[c]) / std[c]. Outside an image its border is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .conv_shape import expect_shape
from .device import Array, Device, elements


def channel_statistics(device: Device, mean: Sequence[float], std: Sequence[float]) -> tuple[Array, Array]:
    """Device arrays (C) float32 of mean and std (units of 0..1), which normalize and deform take.

    Raises ValueError when their lengths differ, a mean is not finite, or a std is not finite and positive.
    """
    pair = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    channels = (pair[0].size,)
    expect_shape("channel_statistics", mean=(pair[0].shape, channels), std=(pair[1].shape, channels))
    if not (np.isfinite(pair).all() and (pair[1] > 0).all()):
        raise ValueError("channel_statistics: expected finite mean and positive std, "
                         f"got {list(mean)} and {list(std)}")
    return device.upload(pair[0]), device.upload(pair[1])


def to_float(device: Device, images: Array, x: Array) -> None:
    """x[c,n,h,w] = images[n,h,w,c] / 255.

    images (N,H,W,C) uint8; x (C,N,H,W) float32, every element written. Raises ValueError when the shapes
    differ.
    """
    N, H, W, C = _images("to_float", images)
    expect_shape("to_float", x=(x.shape, (C, N, H, W)))
    device.launch("image", "to_float", elements(x.size), images, x, C, N, H, W)


def normalize(device: Device, images: Array, x: Array, mean: Array, std: Array) -> None:
    """x[c,n,h,w] = (images[n,h,w,c] / 255 - mean[c]) / std[c].

    images (N,H,W,C) uint8; x (C,N,H,W) float32, every element written; mean, std (C) float32 of
    channel_statistics. Raises ValueError when the shapes do not belong together.
    """
    N, H, W, C = _images("normalize", images)
    expect_shape("normalize", x=(x.shape, (C, N, H, W)), mean=(mean.shape, (C,)), std=(std.shape, (C,)))
    device.launch("image", "normalize", elements(x.size), images, mean, std, x, C, N, H, W)


def crop(device: Device, images: Array, corners: Array, out: Array) -> None:
    """out[n] = the P x Q part of images[n] that begins at corners[n] = (top, left); it may leave the image.

    images (N,H,W,C) uint8; corners (N,2) int32; out (N,P,Q,C) uint8, every element written. Raises ValueError
    when the shapes do not belong together.
    """
    N, H, W, C = _images("crop", images)
    _, P, Q, _ = _images("crop", out)
    expect_shape("crop", out=(out.shape, (N, P, Q, C)), corners=(corners.shape, (N, 2)))
    device.launch("image", "crop", elements(N * P * Q), images, corners, out, N, H, W, C, P, Q)


def mirror(device: Device, images: Array, flags: Array, out: Array) -> None:
    """out[n] = images[n] with left and right exchanged where flags[n] is not 0.

    images, out (N,H,W,C) uint8, not the same array; flags (N) uint8. Raises ValueError when the shapes
    differ.
    """
    N, H, W, C = _images("mirror", images)
    expect_shape("mirror", out=(out.shape, images.shape), flags=(flags.shape, (N,)))
    if out is images:
        raise ValueError("mirror: expected out other than images, got the same array")
    device.launch("image", "mirror", elements(N * H * W), images, flags, out, N, H, W, C)


def deform(device: Device, images: Array, affine: Array, mean: Array, std: Array, x: Array) -> None:
    """Warp, bilinear sampling and normalisation in one pass.

    affine[n] = (a, b, c, d, e, f) takes the output pixel (p, q) to the input position w = a q + b p + c, h =
    d q + e p + f, in pixels; the centre of the first pixel is 0. Positions outside take the border's value.
    images (N,H,W,C) uint8; affine (N,6) float32; mean, std (C) float32 of channel_statistics; x (C,N,P,Q)
    float32, every element written. Raises ValueError when the shapes do not belong together. Source: Oyama et
    al. 2016, "deform".
    """
    N, H, W, C = _images("deform", images)
    if x.ndim != 4:
        raise ValueError(f"deform: expected x(C,N,P,Q), got shape {tuple(x.shape)}")
    P, Q = x.shape[2:]
    expect_shape("deform", x=(x.shape, (C, N, P, Q)), affine=(affine.shape, (N, 6)))
    expect_shape("deform", mean=(mean.shape, (C,)), std=(std.shape, (C,)))
    device.launch("image", "deform", elements(N * P * Q), images, affine, mean, std, x, C, N, H, W, P, Q)


def _images(op: str, images: Array) -> tuple[int, int, int, int]:
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(f"{op}: expected images(N,H,W,C) with pixels, got shape {tuple(images.shape)}")
    N, H, W, C = images.shape
    return N, H, W, C
