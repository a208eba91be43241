"""Images named in text files: DIR/train.txt and DIR/val.txt or DIR/test.txt, one `path label` a line.

Paths are taken from DIR and may hold blanks; labels are whole numbers from 0.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from .order import stratified
from .split import Samples, Source

TEST_FILES = ("val.txt", "test.txt")


def read(folder: Path, seed: int, classes: int | None, class_names: list[str] | None) -> Source:
    """Read the lists; without val.txt or test.txt, a fixed part of each class of train.txt is the test.

    Args: classes: labels must be below it; None takes the greatest label plus one.
    Raises: FileNotFoundError; ValueError naming file:line.
    """
    bound = len(class_names) if class_names else classes
    if not (folder / "train.txt").is_file():
        raise FileNotFoundError(f"list: expected {folder / 'train.txt'} of `path label` lines, got none")
    train = _samples(folder / "train.txt", bound)
    test_file = next((folder / name for name in TEST_FILES if (folder / name).is_file()), None)
    if test_file is not None:
        test = _samples(test_file, bound)
    else:
        train, test = (train.take(part) for part in stratified(train.labels, seed))
    count = bound or 1 + int(max(part.labels.max(initial=0) for part in (train, test)))
    provenance = f"lists in {folder}: {len(train)} train, {len(test)} test, {count} classes"
    return Source(train, test, class_names or [str(k) for k in range(count)], provenance, {})


def _samples(path: Path, bound: int | None) -> Samples:
    paths, labels = [], []
    with open(path, encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                name, label = _parse(line, f"{path}:{number}", bound)
                paths.append(os.path.join(path.parent, name))
                labels.append(label)
    return Samples(paths, np.array(labels, np.int32))


def _parse(line: str, place: str, bound: int | None) -> tuple[str, int]:
    words = line.rsplit(maxsplit=1)
    if len(words) != 2 or not (words[1].isascii() and words[1].isdigit()):
        raise ValueError(f"list: expected `path label` with a label of digits, got {line.strip()!r}: {place}")
    label = int(words[1])
    if label >= (bound or 2**31 - 1):
        raise ValueError(f"list: expected a label below {bound or 2**31 - 1}, got {label}: {place}")
    return words[0].strip(), label
