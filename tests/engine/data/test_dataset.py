"""Opening a set by name: wrong requests are usage errors in one line; limits, classes and statistics hold."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sprint.engine.data import NAMES, open_dataset
from sprint.engine.data.split import ArraySplit, Samples
from sprint.engine.data.statistics import channel_statistics
from sprint.engine.errors import UsageError


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("imagenet", {}, "expected one of digits, mnist"),
        ("digits", dict(image_shape=(2, 28, 28)), r"\(1 or 3, H, W\), got \(2, 28, 28\)"),
        ("digits", dict(image_shape=(3, 0, 28)), r"got \(3, 0, 28\)"),
        ("digits", dict(image_shape=(28, 28)), r"got \(28, 28\)"),
        ("digits", dict(classes=100), "digits: expected 100 classes, got 10"),
        ("digits", dict(class_names=list("abcdefghij")), "expected class 0 to be a, got 0"),
        ("digits", dict(classes=3, class_names=["a", "b"]), "expected 3 class names, got 2"),
        ("digits", dict(seed=-1), "seed >= 0"),
        ("digits", dict(limit=0), "limit >= 1"),
        ("digits", dict(on_bad_image="ignore"), "error or skip, got 'ignore'"),
        ("synthetic", dict(classes=1), "at least 2 classes"),
    ],
)
def test_wrong_requests(name, options, message):
    with pytest.raises(UsageError, match=message):
        open_dataset(name, **{"image_shape": (1, 28, 28), **options})


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"digits", "synthetic"}))
def test_sets_of_files_need_a_folder(name, tmp_path):
    with pytest.raises(UsageError, match=f"{name}: expected --data-dir DIR"):
        open_dataset(name, image_shape=(3, 8, 8))
    with pytest.raises(UsageError, match=r"to be a folder, got .*absent"):
        open_dataset(name, tmp_path / "absent", image_shape=(3, 8, 8))


def test_limit_bounds_both_parts_and_keeps_all_classes():
    data = open_dataset("digits", image_shape=(1, 28, 28), limit=200)
    assert (len(data.train), len(data.test)) == (200, 200)
    assert data.provenance.endswith(": 4000 train, 1000 test; --limit uses 200 train, 200 test")
    assert set(data.train.read(np.arange(200))[1].tolist()) == set(range(10))


def test_statistics_of_channels(rng):
    images = rng.integers(0, 256, (600, 5, 3, 3), np.uint8) // np.array([1, 2, 5], np.uint8)
    split = ArraySplit(Samples(images, np.zeros(600, np.int32)), (3, 5, 3))
    mean, std = channel_statistics(split, 600)
    exact = images.astype(np.float64) / 255
    assert mean.dtype == std.dtype == np.float32
    assert np.allclose(mean, exact.mean(axis=(0, 1, 2)), rtol=1e-6)  # one float32 rounding
    assert np.allclose(std, exact.std(axis=(0, 1, 2)), rtol=1e-6)
    few, _ = channel_statistics(split, 100)
    assert np.allclose(few, mean, rtol=0.1) and not np.array_equal(few, mean)


def test_constant_images_have_a_std_to_divide_by():
    split = ArraySplit(Samples(np.full((3, 2, 2, 1), 9, np.uint8), np.zeros(3, np.int32)), (1, 2, 2))
    mean, std = channel_statistics(split, 3)
    assert mean == np.float32(9 / 255) and std == np.float32(1 / 255)


def test_importing_loads_no_device_code():
    code = (
        "import sys, sprint.engine.data; heavy = ('sprint.kernels', 'cupy', 'mpi4py', 'matplotlib', 'PIL');"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
