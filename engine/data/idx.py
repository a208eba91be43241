"""MNIST's IDX files: big-endian header (0, 0, type, number of dimensions, sizes), then the bytes.

Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from .split import Samples, Source
from .storage import read_whole, verify

UNSIGNED_BYTE = 0x08
PARTS = {"train": "train", "test": "t10k"}
CURE = "download the four MNIST files again"
ORIGINAL = {  # size in bytes and sha256 of the unpacked originals
    "train-images": (47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    "train-labels": (60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    "t10k-images": (7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    "t10k-labels": (10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
}


def read(folder: Path, *, original: bool) -> Source:
    """Read train-images-idx3-ubyte and its three fellows, each plain or .gz, from `folder`.

    Args: original: it is MNIST: ten classes, and a file of the original's size has the original's checksum.
    Raises: FileNotFoundError, ValueError, naming the file.
    """
    train, test = (_part(folder, prefix, original) for prefix in PARTS.values())
    classes = 10 if original else 1 + int(max(part.labels.max(initial=0) for part in (train, test)))
    for part, prefix in ((train, "train"), (test, "t10k")):
        greatest = part.labels.max(initial=0)
        if greatest >= classes:
            raise ValueError(f"idx: expected labels 0..9, got {greatest}: {prefix}-labels in {folder}")
    whole = original and all(len(part) == n for part, n in ((train, 60000), (test, 10000)))
    note = "sha256 of the originals verified" if whole else "not the original MNIST: no checksum known"
    return Source(train, test, [str(k) for k in range(classes)], f"IDX files in {folder}; {note}", {})


def _part(folder: Path, prefix: str, original: bool) -> Samples:
    images = _array(folder, f"{prefix}-images", 3, original)
    labels = _array(folder, f"{prefix}-labels", 1, original)
    if len(images) != len(labels):
        raise ValueError(f"idx: expected {len(images)} labels, got {len(labels)}: {prefix}-* in {folder}")
    return Samples(images[..., None], labels.astype(np.int32))


def _array(folder: Path, stem: str, ndim: int, original: bool) -> np.ndarray:
    path = _find(folder, f"{stem}-idx{ndim}-ubyte")
    content = read_whole(path, CURE)
    array = parse(content, ndim, path)
    size, checksum = ORIGINAL[stem]
    if original and len(content) == size:
        verify(content, "sha256", checksum, path, f"{CURE}, or read another set with --data idx")
    return array


def _find(folder: Path, name: str) -> Path:
    """Return the file called `name`, also if packed or with the dot some copies have before "idx"."""
    names = [name, f"{name}.gz", name.replace("-idx", ".idx"), name.replace("-idx", ".idx") + ".gz"]
    return next((folder / n for n in names if (folder / n).is_file()), folder / names[1])


def parse(content: bytes, ndim: int, path: Path) -> np.ndarray:
    """Return the array of an IDX file of unsigned bytes, uint8 of `ndim` dimensions.

    Raises: ValueError for another magic number, images without pixels, or more or fewer bytes than the header says.
    """
    magic = content[:4]
    if magic != bytes((0, 0, UNSIGNED_BYTE, ndim)):
        raise ValueError(f"idx: expected magic 0000080{ndim}, got {magic.hex() or 'nothing'}: {path}: {CURE}")
    header = 4 + 4 * ndim
    if len(content) < header:
        raise ValueError(f"idx: expected a header of {header} bytes, got {len(content)}: {path}: {CURE}")
    shape = struct.unpack_from(f">{ndim}I", content, 4)
    if 0 in shape[1:]:
        raise ValueError(f"idx: expected images of 1 pixel or more a side, got {shape}: {path}: {CURE}")
    size = header + math.prod(shape)
    if len(content) != size:
        raise ValueError(f"idx: expected {size:,} bytes for {shape}, got {len(content):,}: {path}: {CURE}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
