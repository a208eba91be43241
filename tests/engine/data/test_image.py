"""Every kind of image file becomes RGB or grey of the asked size, or is called bad with path and reason."""

from __future__ import annotations

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image
from sprint.engine.data.image import BadImageError, fit_pixels, read_image

H, W = 6, 9


@pytest.fixture
def rgb(rng):
    return rng.integers(0, 256, (H, W, 3), np.uint8)


def load(path, channels=3, size=(H, W)):
    out = np.full((*size, channels), 99, np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_image(str(path), out)
    return out


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png16(values):
    """Return a PNG of 16 bits a channel from uint16 (h, w, c), which Pillow cannot write."""
    h, w, c = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[c]
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", w, h, 16, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def test_png_named_jpeg(tmp_path, rgb):
    (tmp_path / "a.JPEG").write_bytes(encoded(Image.fromarray(rgb), "PNG"))
    assert np.array_equal(load(tmp_path / "a.JPEG"), rgb)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_16_bit_png_keeps_its_high_byte(tmp_path, rng, channels):
    values = rng.integers(0, 65536, (H, W, channels), np.uint16)
    (tmp_path / "a.png").write_bytes(png16(values))
    colours = values[..., :3] if channels > 2 else values[..., :1]
    assert np.array_equal(load(tmp_path / "a.png"), np.broadcast_to(colours >> 8, (H, W, 3)))


def test_alpha_is_dropped(tmp_path, rgb):
    alpha = np.arange(H * W, dtype=np.uint8).reshape(H, W, 1)
    Image.fromarray(np.dstack([rgb, alpha])).save(tmp_path / "rgba.png")
    Image.fromarray(np.dstack([rgb[..., :1], alpha]), "LA").save(tmp_path / "la.png")
    assert np.array_equal(load(tmp_path / "rgba.png"), rgb)
    assert np.array_equal(load(tmp_path / "la.png"), np.repeat(rgb[..., :1], 3, axis=2))


@pytest.mark.parametrize(
    "transparency", [None, 3, bytes(range(0, 250, 25))], ids=["opaque", "index", "table"]
)
def test_palette(tmp_path, rng, transparency):
    palette = rng.integers(0, 256, (16, 3), np.uint8)
    indices = rng.integers(0, 16, (H, W), np.uint8)
    image = Image.fromarray(indices, "P")
    image.putpalette(palette.tobytes())
    image.save(tmp_path / "a.png", **({} if transparency is None else {"transparency": transparency}))
    assert np.array_equal(load(tmp_path / "a.png"), palette[indices])


def test_cmyk_jpeg(tmp_path):
    ink = np.zeros((H, W, 4), np.uint8)
    ink[..., 0], ink[..., 3] = 255, 51  # full cyan, a fifth black: red 0, green and blue 255 - 51
    Image.fromarray(ink, "CMYK").save(tmp_path / "a.jpg", quality=95)
    assert np.abs(load(tmp_path / "a.jpg").astype(int) - (0, 204, 204)).max() <= 6


def test_one_bit(tmp_path):
    Image.fromarray(np.eye(H, W, dtype=bool)).save(tmp_path / "a.png")
    assert np.array_equal(load(tmp_path / "a.png", 1)[..., 0], 255 * np.eye(H, W))


def test_rgb_to_grey_is_luma(tmp_path, rgb):
    Image.fromarray(rgb).save(tmp_path / "a.bmp")
    luma = rgb.astype(float) @ (0.299, 0.587, 0.114)
    assert np.abs(load(tmp_path / "a.bmp", 1)[..., 0] - luma).max() <= 1


def bad_files(rgb):
    jpeg = encoded(Image.fromarray(np.tile(rgb, (20, 20, 1))), "JPEG")
    png = encoded(Image.fromarray(rgb), "PNG")
    yield "zero.jpg", b"", "empty"
    yield "text.jpg", b"not an image at all", "no image format"
    yield "truncated.jpg", jpeg[: len(jpeg) // 2], "truncated"
    yield "header.jpg", jpeg[:30], ""
    yield "truncated.png", png[:-40], ""
    yield "checksum.png", png[:45] + bytes([png[45] ^ 255]) + png[46:], ""
    yield "float.tif", encoded(Image.fromarray(rgb[..., 0].astype(np.float32)), "TIFF"), "floating-point"
    yield (
        "deep.tif",
        encoded(Image.fromarray(rgb[..., 0].astype(np.int32) * 1000 + 1), "TIFF"),
        "more than 16 bits",
    )


def test_bad_files_are_named_in_one_line(tmp_path, rgb):
    for name, content, reason in bad_files(rgb):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadImageError) as caught:
            load(tmp_path / name)
        message = str(caught.value)
        assert caught.value.path == str(tmp_path / name) and reason in caught.value.reason
        assert message.startswith("image: expected") and name in message and "\n" not in message


@pytest.mark.parametrize("name", ["absent.jpg", ".", "absent/a.jpg"])
def test_no_such_file(tmp_path, name):
    with pytest.raises(BadImageError, match="no such file"):
        load(tmp_path / name)


def naive_bilinear(pixels, height, width):
    """Enlarge (h, w, c): sample at half-pixel centres, edges repeated; a loop over the output."""
    h, w, c = pixels.shape
    out = np.full((height, width, c), np.nan)
    for i in range(height):
        for j in range(width):
            y = min(max((i + 0.5) * h / height - 0.5, 0), h - 1)
            x = min(max((j + 0.5) * w / width - 0.5, 0), w - 1)
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, h - 1), min(x0 + 1, w - 1)
            top = pixels[y0, x0] * (1 - (x - x0)) + pixels[y0, x1] * (x - x0)
            bottom = pixels[y1, x0] * (1 - (x - x0)) + pixels[y1, x1] * (x - x0)
            out[i, j] = top * (1 - (y - y0)) + bottom * (y - y0)
    return out


@pytest.mark.parametrize("size", [(12, 20), (7, 9), (6, 31)])
def test_enlarging_is_bilinear_height_before_width(rgb, size):
    out = np.full((*size, 3), 99, np.uint8)
    fit_pixels(rgb, out)
    assert np.abs(out - naive_bilinear(rgb.astype(float), *size)).max() <= 1.0  # rounded after each direction


def test_reducing_averages():
    stripes = np.zeros((8, 40, 1), np.uint8)
    stripes[:, ::2] = 200
    out = np.full((4, 5, 3), 99, np.uint8)
    fit_pixels(stripes, out)
    assert (
        np.abs(out.astype(int) - 100).max() <= 5
    )  # edges see a cut triangle; taking every eighth column would give 200 everywhere


def test_large_jpeg_reduced_while_decoding_looks_the_same(tmp_path):
    ramp = np.add.outer(np.arange(400) * 0.3, np.arange(600) * 0.2).astype(np.uint8)
    Image.fromarray(ramp).convert("RGB").save(tmp_path / "a.jpg", quality=95)
    out = load(tmp_path / "a.jpg", size=(20, 25))
    middle = np.add.outer((np.arange(20) + 0.5) * 20 * 0.3, (np.arange(25) + 0.5) * 24 * 0.2)
    assert np.abs(out[..., 0] - middle).max() <= 3
