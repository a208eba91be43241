"""Labels come from the training folders alone, whatever the other part has or lacks."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from sprint.engine.data import open_dataset
from sprint.engine.data.image import BadImageError, read_image

SHAPE = (1, 2, 2)


def tree(root, **classes):
    """Make tree(root, ant=2, bee=3): that many grey images in each sub-folder."""
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.new("L", (2, 2), 10 * i).save(root / name / f"{i}.PNG")


def labels(split):
    return split.read(np.arange(len(split)))[1].tolist()


@pytest.mark.parametrize("test_folder", ["val", "test"])
def test_class_missing_from_val_shifts_nothing(tmp_path, test_folder):
    tree(tmp_path / "train", ant=1, bee=1, cow=1)
    tree(tmp_path / test_folder, ant=1, cow=2)
    data = open_dataset("folder", tmp_path, image_shape=SHAPE)
    assert data.class_names == ["ant", "bee", "cow"] and data.classes == 3
    assert labels(data.train) == [0, 1, 2] and labels(data.test) == [0, 2, 2]


def test_classes_of_a_checkpoint_are_kept(tmp_path):
    tree(tmp_path / "train", bee=1, cow=1)
    tree(tmp_path / "val", cow=1)
    saved = ["cow", "ant", "bee"]
    data = open_dataset("folder", tmp_path, image_shape=SHAPE, class_names=saved)
    assert data.class_names == saved
    assert labels(data.train) == [0, 2] and labels(data.test) == [0]


def test_class_that_training_lacks_is_refused(tmp_path):
    tree(tmp_path / "train", ant=1, bee=1)
    tree(tmp_path / "val", ant=1, wasp=1)
    with pytest.raises(ValueError, match="got wasp too"):
        open_dataset("folder", tmp_path, image_shape=SHAPE)
    with pytest.raises(ValueError, match="got bee too"):
        open_dataset("folder", tmp_path, image_shape=SHAPE, class_names=["ant", "wasp"])


@pytest.mark.parametrize("sub", ["", "train"])
def test_without_val_a_fixed_fifth_of_each_class_is_the_test(tmp_path, sub):
    tree(tmp_path / sub, ant=10, bee=5)
    first, again, other = (open_dataset("folder", tmp_path, image_shape=SHAPE, seed=s) for s in (0, 0, 1))
    assert labels(first.train) == [0] * 8 + [1] * 4 and labels(first.test) == [0] * 2 + [1]
    pixels = [data.test.read(np.arange(3))[0].tolist() for data in (first, again, other)]
    assert pixels[0] == pixels[1] != pixels[2]


def test_images_below_sub_folders_and_other_files(tmp_path):
    tree(tmp_path / "ant", deep=5)
    tree(tmp_path, bee=5)
    (tmp_path / "bee" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "bee" / ".hidden.png").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".git").mkdir()
    data = open_dataset("folder", tmp_path, image_shape=SHAPE)
    assert data.class_names == ["ant", "bee"] and len(data.train) + len(data.test) == 10


def test_unlabeled_image_is_named_or_listed(tmp_path):
    tree(tmp_path, ant=5, bee=5)
    Image.new("L", (2, 2)).save(tmp_path / "stray.png")
    with pytest.raises(ValueError, match=r"without a class folder: .*stray\.png"):
        open_dataset("folder", tmp_path, image_shape=SHAPE)
    data = open_dataset("folder", tmp_path, image_shape=SHAPE, on_bad_image="skip")
    assert list(data.bad) == [str(tmp_path / "stray.png")] and len(data.train) + len(data.test) == 10


def test_links_in_a_loop_are_bad_images(tmp_path):
    tree(tmp_path / "train", ant=2, bee=2)
    tree(tmp_path / "val", ant=1, bee=1)
    loops = [tmp_path / "train" / "ant" / "loop.png", tmp_path / "val" / "bee" / "loop.png"]
    for loop in loops:
        loop.symlink_to(loop.name)
    (tmp_path / "train" / "bee" / "up").symlink_to(tmp_path / "train", target_is_directory=True)
    with pytest.raises(BadImageError, match=f"symbolic links: {loops[0]}"):
        open_dataset("folder", tmp_path, image_shape=SHAPE).train.read(np.arange(5))
    data = open_dataset("folder", tmp_path, image_shape=SHAPE, on_bad_image="skip")
    assert sorted(labels(data.train)) == [-1, 0, 0, 1, 1] and sorted(labels(data.test)) == [-1, 0, 1]
    assert sorted(data.bad) == sorted(map(str, loops))


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_names_that_no_file_can_have_are_bad_images(name):
    with pytest.raises(BadImageError):
        read_image(name, np.zeros((2, 2, 1), np.uint8))


def test_fewer_than_two_classes(tmp_path):
    tree(tmp_path, val=3)
    with pytest.raises(ValueError, match=r"at least 2 class folders .* got \['val'\]"):
        open_dataset("folder", tmp_path, image_shape=SHAPE)


def test_empty_val_is_refused(tmp_path):
    tree(tmp_path / "train", ant=1, bee=1)
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match="at least one test image"):
        open_dataset("folder", tmp_path, image_shape=SHAPE)
