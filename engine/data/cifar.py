"""CIFAR-10 and CIFAR-100, from their Python batches or their binary files.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009, and the sets' home page.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from . import pickles
from .split import Samples, Source
from .storage import read_whole, verify

PIXELS = 3 * 32 * 32  # of one image: red, green and blue planes, row by row


@dataclass(frozen=True)
class Layout:
    """Names within one set; a binary record has `label_bytes` before its pixels, the last is the class."""

    archive: str
    homes: tuple[str, str]  # folders that the python and the binary archive unpack to
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str
    names: str
    meta: tuple[str, str]  # files with the class names, python and binary
    label_bytes: int
    classes: int


LAYOUTS = {
    "cifar10": Layout(
        archive="cifar-10",
        homes=("cifar-10-batches-py", "cifar-10-batches-bin"),
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test=("test_batch",),
        labels="labels",
        names="label_names",
        meta=("batches.meta", "batches.meta.txt"),
        label_bytes=1,
        classes=10,
    ),
    "cifar100": Layout(
        archive="cifar-100",
        homes=("cifar-100-python", "cifar-100-binary"),
        train=("train",),
        test=("test",),
        labels="fine_labels",
        names="fine_label_names",
        meta=("meta", "fine_label_names.txt"),
        label_bytes=2,
        classes=100,
    ),
}
ORIGINAL = {  # images and md5 of the original python batches
    "data_batch_1": (10000, "c99cafc152244af753f735de768cd75f"),
    "data_batch_2": (10000, "d4bba439e000b95fd0a9bffe97cbabec"),
    "data_batch_3": (10000, "54ebc095f3ab1f0389bbae665268c751"),
    "data_batch_4": (10000, "634d18415352ddfa80567beed471001a"),
    "data_batch_5": (10000, "482c414d41f54cd18b22e5b47cb7c3cb"),
    "test_batch": (10000, "40351d587109b95175f43aff81a1287e"),
    "train": (50000, "16019d7e3df5f24257cddd939b257f8d"),
    "test": (10000, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
}


def read(name: str, folder: Path) -> Source:
    """Read the set `name` (a key of LAYOUTS) from `folder` or from the folder its archive unpacks to.

    Raises: FileNotFoundError, ValueError, naming the file and the cure.
    """
    layout = LAYOUTS[name]
    files = _locate(layout, folder)
    train, test = files.samples(layout.train), files.samples(layout.test)
    kind = "binary, no checksum known" if files.binary else "python"
    provenance = f"{layout.archive} ({kind}) in {files.home}: {len(train)} train, {len(test)} test"
    return Source(train, test, files.class_names(), provenance, {})


def _locate(layout: Layout, folder: Path) -> _Files:
    """Find the folder that has any of the batches, in either format."""
    for home in (folder, *(folder / name for name in layout.homes)):
        for binary in (False, True):
            files = _Files(layout, home, binary)
            if any(files.path(name).is_file() for name in layout.train + layout.test):
                return files
    raise FileNotFoundError(
        f"data: expected {layout.train[0]} or {layout.train[0]}.bin in {folder}, got neither: "
        f"unpack {layout.archive}-python.tar.gz there"
    )


@dataclass(frozen=True)
class _Files:
    """The files of one set in one format."""

    layout: Layout
    home: Path
    binary: bool

    @property
    def cure(self) -> str:
        return f"unpack {self.layout.archive}-{'binary' if self.binary else 'python'}.tar.gz again"

    def path(self, name: str) -> Path:
        return self.home / (f"{name}.bin" if self.binary else name)

    def samples(self, names: tuple[str, ...]) -> Samples:
        """Join batches. Raises: ValueError if one of several holds fewer images than the others."""
        parts = [self._batch(name) for name in names]
        most = max(len(part) for part in parts)
        for name, part in zip(names, parts, strict=True):
            if len(part) < most:
                self._fail(f"expected {most} images as in other batches, got {len(part)}", self.path(name))
        images = np.concatenate([part.images for part in parts])
        return Samples(images, np.concatenate([part.labels for part in parts]))

    def _batch(self, name: str) -> Samples:
        """Read one batch: images uint8 (n, 32, 32, 3), labels int32 (n)."""
        content = read_whole(self.path(name), self.cure)
        try:
            pixels, labels = (_binary if self.binary else _pickled)(content, self.layout)
        except (ValueError, pickle.UnpicklingError) as error:
            self._fail(str(error), self.path(name))
        count, checksum = ORIGINAL[name]
        if len(labels) == count and not self.binary:
            verify(content, "md5", checksum, self.path(name), self.cure)
        return Samples(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels)

    def class_names(self) -> list[str]:
        """Return the names in the set's own file, or numbers where that file is not there."""
        path = self.home / self.layout.meta[self.binary]
        if not path.is_file():
            return [str(k) for k in range(self.layout.classes)]
        content = path.read_bytes()
        try:
            names = content.decode().split() if self.binary else pickles.load(content)[self.layout.names]
        except (KeyError, ValueError, pickle.UnpicklingError) as error:
            self._fail(f"expected class names, got none ({error})", path)
        if len(names) != self.layout.classes:
            self._fail(f"expected {self.layout.classes} class names, got {len(names)}", path)
        return names

    def _fail(self, what: str, path: Path) -> NoReturn:
        raise ValueError(f"cifar: {what}: {path}: {self.cure}")


def _pickled(content: bytes, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels uint8 (n, 3072) and labels int32 (n) of a Python batch."""
    batch = pickles.load(content)
    pixels, labels = batch.get("data"), np.asarray(batch.get(layout.labels))
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise ValueError(f"expected data of uint8 (n, {PIXELS}), got {getattr(pixels, 'shape', None)}")
    return pixels, _checked(labels, len(pixels), layout)


def _binary(content: bytes, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels uint8 (n, 3072) and labels int32 (n) of a binary batch."""
    record = layout.label_bytes + PIXELS
    if not content or len(content) % record:
        raise ValueError(f"expected a multiple of {record} bytes, got {len(content):,}")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    pixels = records[:, layout.label_bytes :]
    return pixels, _checked(records[:, layout.label_bytes - 1], len(records), layout)


def _checked(labels: np.ndarray, count: int, layout: Layout) -> np.ndarray:
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise ValueError(f"expected {count} {layout.labels}, got {labels.dtype} {labels.shape}")
    if count and (labels.min() < 0 or labels.max() >= layout.classes):
        raise ValueError(f"expected labels 0..{layout.classes - 1}, got {labels.min()}..{labels.max()}")
    return labels.astype(np.int32)
