"""Images in class sub-folders: DIR/train/CLASS/*.jpg and DIR/val or DIR/test alike, or only DIR/CLASS/*.jpg.

A label is the place of the class among the sorted folders of the training part (or in the list that a
checkpoint saved), never among those of another part, so a class missing there shifts nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from .order import stratified
from .split import Samples, Source

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
TEST_FOLDERS = ("val", "test")


def read(root: Path, seed: int, class_names: list[str] | None) -> Source:
    """List the images under `root`; without a val or test folder, a fixed part of each class is the test.

    Raises: ValueError for fewer than two classes, a class that train does not have, or no images.
    """
    train_root = root / "train" if (root / "train").is_dir() else root
    names = class_names or _folders(train_root)
    if len(names) < 2:
        raise ValueError(f"folder: expected at least 2 class folders in {train_root}, got {names}")
    bad: dict[str, str] = {}
    train = _samples(train_root, names, bad)
    test_root = next((root / name for name in TEST_FOLDERS if (root / name).is_dir()), None)
    if train_root != root and test_root is not None:
        test = _samples(test_root, names, bad)
    else:
        train, test = (train.take(part) for part in stratified(train.labels, seed))
    provenance = f"folders in {root}: {len(train)} train, {len(test)} test, {len(names)} classes"
    return Source(train, test, names, provenance, bad)


def _folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _samples(root: Path, names: list[str], bad: dict[str, str]) -> Samples:
    """List the images of every class under `root`; those outside of a class folder go to `bad`."""
    unknown = sorted(set(_folders(root)) - set(names))
    if unknown:
        raise ValueError(f"folder: expected the classes of training, got {unknown[0]} too: {root}")
    loose = sorted(str(path) for path in root.iterdir() if _is_image(path))
    bad.update(dict.fromkeys(loose, "an image without a class folder"))
    found = [_images(root / name) for name in names]
    labels = np.repeat(np.arange(len(names), dtype=np.int32), [len(images) for images in found])
    return Samples([path for images in found for path in images], labels)


def _images(folder: Path) -> list[str]:
    """Return the paths of all images at any depth below `folder`, in a fixed order."""
    return sorted(
        os.path.join(place, name)
        for place, _, files in os.walk(folder)
        for name in files
        if _is_image(Path(name))
    )


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
