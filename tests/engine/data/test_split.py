"""Splits in memory deliver the net's size, whatever fits in memory, and refuse wrong requests."""

from __future__ import annotations

import numpy as np
import pytest
from sprint.engine.data.split import ArraySplit, Samples


@pytest.fixture
def samples(rng):
    return Samples(rng.integers(0, 256, (6, 5, 7, 1), np.uint8), np.arange(6, dtype=np.int32))


@pytest.mark.parametrize("resident_bytes", [0, 1 << 20], ids=["resized at each read", "resized once"])
@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 5, 7), (3, 9, 4), (1, 2, 3)])
def test_delivers_the_same_whether_it_fits_in_memory_or_not(samples, shape, resident_bytes):
    reference = np.stack(
        [ArraySplit(samples.take(np.array([i])), shape).read(np.array([0]))[0][0] for i in range(6)]
    )
    split = ArraySplit(samples, shape, resident_bytes)
    out = np.full((4, shape[1], shape[2], shape[0]), 77, np.uint8)
    images, labels = split.read(np.array([5, 0, 5]), out)
    assert np.shares_memory(images, out) and np.all(out[3] == 77)
    assert np.array_equal(images, reference[[5, 0, 5]]) and labels.tolist() == [5, 0, 5]
    assert labels.dtype == np.int32


def test_own_size_is_untouched(samples):
    images, _ = ArraySplit(samples, (3, 5, 7)).read(np.arange(6))
    assert np.array_equal(images, np.repeat(samples.images, 3, axis=3))


def test_no_samples_asked_for(samples):
    images, labels = ArraySplit(samples, (1, 5, 7)).read(np.arange(0))
    assert images.shape == (0, 5, 7, 1) and labels.shape == (0,)


@pytest.mark.parametrize("index", [-1, 6])
def test_index_out_of_range(samples, index):
    with pytest.raises(IndexError, match=rf"0\.\.5, got {index}"):
        ArraySplit(samples, (1, 5, 7)).read(np.array([index]))


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.empty((2, 5, 7, 1), np.float32), TypeError),
        (np.empty((1, 5, 7, 1), np.uint8), ValueError),
        (np.empty((2, 7, 5, 1), np.uint8), ValueError),
    ],
    ids=["float32", "too few rows", "width before height"],
)
def test_wrong_out(samples, out, error):
    with pytest.raises(error, match="read: expected out"):
        ArraySplit(samples, (1, 5, 7)).read(np.arange(2), out)
