"""One image: from a file's bytes, or from pixels of another size, to uint8 (H, W, C) as a net wants it.

The aspect ratio is not kept; resizing is Pillow's bilinear filter. Grey becomes RGB by replication, RGB
becomes grey by the Rec. 601 luma, alpha is dropped, 16 bits keep the high byte, CMYK and palettes become RGB.
"""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

Shape = tuple[int, int, int]  # (C, H, W)
NO_FILE = (errno.ELOOP, errno.ENAMETOOLONG)  # of the path's own making, not the machine's


class BadImageError(ValueError):
    """An image file that cannot become pixels; `path` and `reason` say which and why."""

    def __init__(self, path: str, reason: str):
        super().__init__(f"image: expected an image, got {reason}: {path} (left out by --on-bad-image skip)")
        self.path, self.reason = path, reason


def read_image(path: str, out: np.ndarray) -> None:
    """Decode the file `path` into `out`, uint8 (H, W, C), C = 1 or 3.

    Raises: BadImageError; OSError where the machine, not the image, is at fault (permission, too many files).
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise BadImageError(path, "no such file") from error
    except ValueError as error:
        raise BadImageError(path, "a name that no file can have") from error
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise BadImageError(path, os.strerror(error.errno).lower()) from error
    if not content:
        raise BadImageError(path, "an empty file")
    try:
        decode(content, out)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise a dozen types on bytes they do not understand
        raise BadImageError(path, _reason(error)) from error


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "no image format that Pillow knows"
    return " ".join(str(error).split()) or type(error).__name__


def decode(content: bytes, out: np.ndarray) -> None:
    """Decode the bytes of an image file into `out`, uint8 (H, W, C). Raises whatever Pillow raises."""
    from PIL import Image

    height, width, channels = out.shape
    mode = "L" if channels == 1 else "RGB"
    with Image.open(io.BytesIO(content)) as image:
        image.draft(mode, (2 * width, 2 * height))  # JPEG: decode no larger than needed
        _fit(_plain(image), out)


def fit_pixels(pixels: np.ndarray, out: np.ndarray) -> None:
    """Resize and recolour `pixels`, uint8 (h, w, c), into `out`, uint8 (H, W, C); c and C are 1 or 3."""
    if pixels.shape[:2] == out.shape[:2] and pixels.shape[2] in (1, out.shape[2]):
        out[...] = pixels
        return
    from PIL import Image

    _fit(Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels), out)


def _plain(image: Image.Image) -> Image.Image:
    """Return the image in mode L or RGB."""
    if image.mode in ("L", "RGB"):
        return image
    if image.mode[0] == "I":
        return _high_byte(image)
    if image.mode == "F":
        raise ValueError("floating-point pixels, whose range is unknown")
    if image.mode in ("1", "LA", "La"):
        return image.convert("L")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _high_byte(image: Image.Image) -> Image.Image:
    """Reduce 16-bit grey (modes I and I;16*) to 8 bits; Pillow's own conversion would clip at 255."""
    from PIL import Image

    values = np.asarray(image)
    if values.size and (values.min() < 0 or values.max() > 65535):
        raise ValueError(f"pixels of more than 16 bits ({values.min()}..{values.max()})")
    return Image.fromarray((values >> 8).astype(np.uint8))


def _fit(image: Image.Image, out: np.ndarray) -> None:
    from PIL import Image

    height, width, channels = out.shape
    if channels == 1 and image.mode == "RGB":
        image = image.convert("L")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    out[...] = pixels[:, :, None] if pixels.ndim == 2 else pixels
