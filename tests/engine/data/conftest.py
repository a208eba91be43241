"""Small files in the formats of the public data sets, and splits that need no files."""

from __future__ import annotations

import gzip
import pickle
import struct
import time

import numpy as np
import pytest


@pytest.fixture
def write_idx():
    return _write_idx


def _write_idx(path, array, ndim=None):
    """Write `array` uint8 as an IDX file, packed if the name ends in .gz."""
    header = bytes((0, 0, 8, ndim or array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def mnist_like(tmp_path, rng):
    """A folder with 30 train and 10 test images of 5 x 7, every label at its index modulo 10."""
    for prefix, n in (("train", 30), ("t10k", 10)):
        images = rng.integers(0, 256, (n, 5, 7), np.uint8)
        _write_idx(tmp_path / f"{prefix}-images-idx3-ubyte.gz", images)
        _write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte", np.arange(n, dtype=np.uint8) % 10)
    return tmp_path


@pytest.fixture
def cifar_like(tmp_path, rng):
    """cifar_like(name, binary) writes batches of 4 images; returns (folder, planes uint8 (N, 3, 32, 32))."""

    def write(name, binary):
        train = [f"data_batch_{i}" for i in range(1, 6)] if name == "cifar10" else ["train"]
        test = "test_batch" if name == "cifar10" else "test"
        planes = rng.integers(0, 256, (4 * len(train) + 4, 3, 32, 32), np.uint8)
        for i, batch in enumerate([*train, test]):
            part, labels = planes[4 * i : 4 * i + 4].reshape(4, -1), [(4 * i + j) % 10 for j in range(4)]
            (_binary if binary else _pickled)(tmp_path, name, batch, part, labels)
        return tmp_path, planes

    return write


def _pickled(folder, name, batch, pixels, labels):
    key = b"labels" if name == "cifar10" else b"fine_labels"
    content = {b"batch_label": b"a test", key: labels, b"data": pixels, b"coarse_labels": [0] * 4}
    (folder / batch).write_bytes(pickle.dumps(content, protocol=2))


def _binary(folder, name, batch, pixels, labels):
    columns = [np.array(labels, np.uint8)[:, None], pixels]
    if name == "cifar100":
        columns.insert(0, np.full((4, 1), 19, np.uint8))  # the coarse label comes first
    (folder / f"{batch}.bin").write_bytes(np.hstack(columns).tobytes())


class NumberedSplit:
    """Sample i is an image full of i (mod 251) with label i mod 7; reading may be slow or fail."""

    shape = (1, 2, 3)

    def __init__(self, n, *, broken=(), unreadable=(), delay=None):
        self.n, self.broken, self.unreadable, self.delay = n, broken, unreadable, delay
        self.reads = 0

    def __len__(self):
        return self.n

    def read(self, indices, out=None):
        self.reads += 1
        if self.delay is not None:
            time.sleep(self.delay(int(indices[0])))
        for index in indices:
            if index in self.broken:
                raise ValueError(f"sample {index} is broken")
        images = np.empty((len(indices), 2, 3, 1), np.uint8) if out is None else out[: len(indices)]
        images[...] = (indices % 251).astype(np.uint8)[:, None, None, None]
        return images, np.where(np.isin(indices, list(self.unreadable)), -1, indices % 7).astype(np.int32)


@pytest.fixture(scope="session")
def numbered():
    return NumberedSplit
