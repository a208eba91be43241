from __future__ import annotations

import math

import numpy as np
import pytest
from sprint.kernels import image

F = np.float32
SHAPES = [(2, 5, 9, 3), (3, 4, 2, 1), (1, 1, 1, 4), (1, 3, 40, 3)]  # N,H,W,C
TOLERANCE = {"rtol": 1e-5, "atol": 2e-5}  # values of up to 20 after the division by std


def pictures(rng, shape):
    return rng.integers(0, 256, shape).astype(np.uint8)


def statistics(device, C):
    return image.channel_statistics(device, [0.1 * (c + 1) for c in range(C)], [0.05 * (c + 1) for c in range(C)])


def normalized(v, c):
    return (v / 255 - 0.1 * (c + 1)) / (0.05 * (c + 1))


@pytest.mark.parametrize("shape", SHAPES)
def test_to_float(device, rng, poison, shape):
    images = pictures(rng, shape)
    N, H, W, C = shape
    x, reference = poison((C, N, H, W)), np.zeros((C, N, H, W))
    image.to_float(device, images, x)
    for n, h, w, c in np.ndindex(shape):
        reference[c, n, h, w] = int(images[n, h, w, c]) / 255
    np.testing.assert_allclose(x, reference, rtol=2e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_normalize(device, rng, poison, shape):
    images = pictures(rng, shape)
    N, H, W, C = shape
    x, reference = poison((C, N, H, W)), np.zeros((C, N, H, W))
    image.normalize(device, images, x, *statistics(device, C))
    for n, h, w, c in np.ndindex(shape):
        reference[c, n, h, w] = normalized(int(images[n, h, w, c]), c)
    np.testing.assert_allclose(x, reference, **TOLERANCE)


@pytest.mark.parametrize("shape, size", [((3, 5, 9, 3), (4, 2)), ((2, 6, 4, 1), (6, 4)), ((2, 3, 2, 2), (5, 7))])
def test_crop(device, rng, poison, shape, size):
    images = pictures(rng, shape)
    N, H, W, C = shape
    corners = rng.integers(-3, 4, (N, 2)).astype(np.int32)
    corners[0] = 2**31 - 1, -(2**31)  # far outside
    out = poison((N, *size, C), np.uint8)
    image.crop(device, images, corners, out)
    for n, p, q, c in np.ndindex(out.shape):
        h, w = min(max(int(corners[n, 0]) + p, 0), H - 1), min(max(int(corners[n, 1]) + q, 0), W - 1)
        assert out[n, p, q, c] == images[n, h, w, c]


@pytest.mark.parametrize("shape", SHAPES)
def test_mirror(device, rng, poison, shape):
    images, out = pictures(rng, shape), poison(shape, np.uint8)
    flags = (np.arange(shape[0]) % 2 * 7).astype(np.uint8)
    image.mirror(device, images, flags, out)
    for n, h, w, c in np.ndindex(shape):
        assert out[n, h, w, c] == images[n, h, shape[2] - 1 - w if flags[n] else w, c]


def naive_deform(images, affine, size):
    N, H, W, C = images.shape
    x = np.zeros((C, N, *size))
    for c, n, p, q in np.ndindex(x.shape):
        a = [float(v) for v in affine[n]]
        w = min(max(a[0] * q + a[1] * p + a[2], 0), W - 1)
        h = min(max(a[3] * q + a[4] * p + a[5], 0), H - 1)
        w0, h0 = int(w), int(h)
        w1, h1 = min(w0 + 1, W - 1), min(h0 + 1, H - 1)
        corner = [[int(images[n, i, j, c]) for j in (w0, w1)] for i in (h0, h1)]
        above, below = (row[0] * (1 - w + w0) + row[1] * (w - w0) for row in corner)
        x[c, n, p, q] = normalized(above * (1 - h + h0) + below * (h - h0), c)
    return x


@pytest.mark.parametrize("shape, size", [((2, 5, 9, 3), (4, 7)), ((3, 6, 4, 1), (6, 4)), ((1, 1, 1, 2), (3, 2)),
                                         ((2, 3, 2, 3), (5, 35))])
def test_deform_equals_naive_bilinear_sampling(device, rng, poison, shape, size):
    images = pictures(rng, shape)
    N, _, _, C = shape
    # eighths: coordinates are exact in float32, so a border is met alike by the reference
    affine = (rng.integers(-12, 13, (N, 6)) / 8 + [0, 0, 4, 0, 0, 2]).astype(F)
    x = poison((C, N, *size))
    image.deform(device, images, affine, *statistics(device, C), x)
    np.testing.assert_allclose(x, naive_deform(images, affine, size), **TOLERANCE)


def test_deform_by_the_identity_normalizes(device, rng, poison):
    images = pictures(rng, (2, 5, 9, 3))
    x, reference, mean_std = poison((3, 2, 5, 9)), poison((3, 2, 5, 9)), statistics(device, 3)
    image.deform(device, images, np.tile(np.array([1, 0, 0, 0, 1, 0], F), (2, 1)), *mean_std, x)
    image.normalize(device, images, reference, *mean_std)
    np.testing.assert_allclose(x, reference, rtol=1e-6, atol=1e-6)


def test_deform_mirrors_shifts_and_turns(device, rng, poison):
    images = pictures(rng, (3, 4, 6, 2))
    affine = np.array([[-1, 0, 5, 0, 1, 0], [1, 0, 2, 0, 1, -1], [0, 1, 0, 1, 0, 0]], F)
    x = poison((2, 3, 4, 4))
    image.deform(device, images, affine, *image.channel_statistics(device, [0, 0], [1, 1]), x)
    units = images.transpose(3, 0, 1, 2) / 255
    np.testing.assert_allclose(x[:, 0], units[:, 0, :, :1:-1], rtol=1e-6)
    np.testing.assert_allclose(x[:, 1], units[:, 1, [0, 0, 1, 2]][:, :, 2:], rtol=1e-6)
    np.testing.assert_allclose(x[:, 2], units[:, 2, :, :4].transpose(0, 2, 1), rtol=1e-6)


@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf, 3e38, -3e38])
def test_deform_to_nowhere_stays_inside_the_image(device, rng, poison, wild):
    images = pictures(rng, (1, 3, 5, 2))
    x = poison((2, 1, 2, 3))
    for place in range(6):
        affine = np.array([[1, 0, 0, 0, 1, 0]], F)
        affine[0, place] = wild
        image.deform(device, images, affine, *statistics(device, 2), x)
        assert np.isfinite(x).all()


def test_no_images_no_launch(device, forbid_launch, poison):
    mean_std = statistics(device, 3)
    forbid_launch()
    images, x = np.empty((0, 5, 9, 3), np.uint8), np.empty((3, 0, 5, 9), F)
    image.to_float(device, images, x)
    image.normalize(device, images, x, *mean_std)
    image.crop(device, images, np.empty((0, 2), np.int32), np.empty((0, 2, 2, 3), np.uint8))
    image.mirror(device, images, np.empty(0, np.uint8), images.copy())
    image.deform(device, images, np.empty((0, 6), F), *mean_std, x)


@pytest.mark.parametrize("mean, std", [([0.5], [0.0]), ([0.5], [-1.0]), ([0.5], [math.nan]), ([math.inf], [1.0]),
                                       ([0.5, 0.5], [1.0]), ([0.5], [1e-50])])
def test_statistics_that_cannot_be_are_refused(fast, mean, std):
    with pytest.raises(ValueError, match="channel_statistics: expected"):
        image.channel_statistics(fast, mean, std)


def test_wrong_arguments_are_refused(fast):
    images, x, mean_std = np.zeros((2, 5, 9, 3), np.uint8), np.ones((3, 2, 5, 9), F), statistics(fast, 3)
    with pytest.raises(ValueError, match=r"to_float: expected x\(3, 2, 5, 9\), got \(2, 3, 5, 9\)"):
        image.to_float(fast, images, x.reshape(2, 3, 5, 9))
    with pytest.raises(ValueError, match=r"normalize: expected images\(N,H,W,C\) with pixels"):
        image.normalize(fast, images[0], x, *mean_std)
    with pytest.raises(ValueError, match="normalize: expected std"):
        image.normalize(fast, images, x, mean_std[0], np.ones(2, F))
    with pytest.raises(ValueError, match=r"crop: expected corners\(2, 2\)"):
        image.crop(fast, images, np.zeros((3, 2), np.int32), images.copy())
    with pytest.raises(ValueError, match="mirror: expected flags"):
        image.mirror(fast, images, np.zeros(3, np.uint8), images.copy())
    with pytest.raises(ValueError, match=r"deform: expected affine\(2, 6\), got \(2, 2, 3\)"):
        image.deform(fast, images, np.zeros((2, 2, 3), F), *mean_std, x)
    with pytest.raises(ValueError, match=r"deform: expected x\(C,N,P,Q\)"):
        image.deform(fast, images, np.zeros((2, 6), F), *mean_std, x[0])
    with pytest.raises(TypeError, match="uint8, got float32"):
        image.to_float(fast, images.astype(F), x)
    with pytest.raises(ValueError, match="contiguous"):
        image.to_float(fast, np.zeros((2, 9, 5, 3), np.uint8).transpose(0, 2, 1, 3), x)
    with pytest.raises(ValueError, match="mirror: expected out other than images"):
        image.mirror(fast, images, np.zeros(2, np.uint8), images)
