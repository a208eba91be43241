"""Lists of `path label` lines; every fault is named by file and line."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from sprint.engine.data import open_dataset
from sprint.engine.errors import UsageError

SHAPE = (1, 2, 2)


@pytest.fixture
def listed(tmp_path):
    """listed(train, test_file="val.txt", test=...) writes lists; image `sub dir/a b.png` is full of 50."""
    (tmp_path / "sub dir").mkdir()
    Image.new("L", (2, 2), 50).save(tmp_path / "sub dir" / "a b.png")
    Image.new("L", (2, 2), 60).save(tmp_path / "c.png")

    def write(train, test=None, test_file="val.txt"):
        (tmp_path / "train.txt").write_text(train)
        if test is not None:
            (tmp_path / test_file).write_text(test)
        return tmp_path

    return write


@pytest.mark.parametrize("test_file", ["val.txt", "test.txt"])
def test_reads_paths_with_blanks_and_labels(listed, test_file):
    folder = listed("sub dir/a b.png 2\n\n  c.png\t0  \r\n", "c.png 1\n", test_file)
    data = open_dataset("list", folder, image_shape=SHAPE)
    images, labels = data.train.read(np.arange(2))
    assert images[:, 0, 0, 0].tolist() == [50, 60] and labels.tolist() == [2, 0]
    assert data.test.read(np.arange(1))[1].tolist() == [1]
    assert data.class_names == ["0", "1", "2"]


def test_absolute_paths(listed, tmp_path):
    data = open_dataset("list", listed(f"{tmp_path}/c.png 1\n", "c.png 0"), image_shape=SHAPE)
    assert data.train.read(np.arange(1))[0].max() == 60


def test_without_val_a_fixed_fifth_is_the_test(listed):
    folder = listed("c.png 0\n" * 10 + "c.png 1\n" * 5)
    data = open_dataset("list", folder, image_shape=SHAPE)
    assert (len(data.train), len(data.test)) == (12, 3)


@pytest.mark.parametrize(
    "line", ["c.png", "c.png -1", "c.png 1.0", "c.png cat", "7", "c.png ²", "c.png 4294967299"]
)
def test_bad_line_is_named(listed, line):
    with pytest.raises(ValueError, match=r"list: expected .*train\.txt:3$") as caught:
        open_dataset("list", listed(f"c.png 0\n\n{line}\n"), image_shape=SHAPE)
    assert "\n" not in str(caught.value)


def test_label_beyond_the_classes(listed):
    folder = listed("c.png 0\n", "c.png 0\nc.png 5\n")
    with pytest.raises(ValueError, match=r"label below 5, got 5: .*val\.txt:2"):
        open_dataset("list", folder, image_shape=SHAPE, classes=5)
    with pytest.raises(ValueError, match=r"label below 2, got 5: .*val\.txt:2"):
        open_dataset("list", folder, image_shape=SHAPE, class_names=["no", "yes"])
    assert open_dataset("list", folder, image_shape=SHAPE, classes=9).classes == 9


def test_missing_list_or_image(listed, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected .*train\.txt of `path label` lines"):
        open_dataset("list", tmp_path, image_shape=SHAPE)
    data = open_dataset("list", listed("gone.png 0\n", "c.png 1\n"), image_shape=SHAPE)
    with pytest.raises(ValueError, match=r"no such file: .*gone\.png"):
        data.train.read(np.arange(1))
    with pytest.raises(UsageError, match=r"expected --data-dir to be a folder, got .*train\.txt"):
        open_dataset("list", tmp_path / "train.txt", image_shape=SHAPE)
