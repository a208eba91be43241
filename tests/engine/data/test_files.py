"""A split of image files: bad ones stop the run with their path, or are left out and counted."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from sprint.engine.data import UNREADABLE, BadImageError, Loader, open_dataset

pytestmark = pytest.mark.timeout(60)
SHAPE = (3, 4, 6)


@pytest.fixture
def pictures(tmp_path):
    """Two classes of 10 plain images each; picture i of class k is full of 100 k + i. Two are spoilt."""
    for k, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(10):
            Image.fromarray(np.full((4, 6, 3), 100 * k + i, np.uint8)).save(tmp_path / name / f"{i}.png")
    (tmp_path / "cat" / "3.png").write_bytes(b"")
    (tmp_path / "dog" / "7.png").write_bytes((tmp_path / "dog" / "8.png").read_bytes()[:40])
    return tmp_path


def both_parts(data):
    """Return (label, grey level) of everything that one epoch of each part delivers."""
    seen = []
    for split in (data.train, data.test):
        with Loader(split, 3, epochs=1, threads=2) as loader:
            for batch in loader:
                assert np.all(batch.images == batch.images[:, :1, :1, :1])
                seen += zip(batch.labels.tolist(), batch.images[:, 0, 0, 0].tolist(), strict=True)
    return seen


def test_skip_leaves_out_exactly_the_bad_ones_and_lists_them(pictures):
    data = open_dataset("folder", pictures, image_shape=SHAPE, on_bad_image="skip")
    expected = {(k, 100 * k + i) for k in (0, 1) for i in range(10)} - {(0, 3), (1, 107)}
    seen = both_parts(data)
    assert len(seen) == 18 and set(seen) == expected
    assert set(data.bad) == {str(pictures / "cat" / "3.png"), str(pictures / "dog" / "7.png")}
    assert data.bad[str(pictures / "cat" / "3.png")] == "an empty file"
    assert set(both_parts(data)) == expected and len(data.bad) == 2  # counted once


def test_error_names_the_path_within_one_step(pictures):
    data = open_dataset("folder", pictures, image_shape=SHAPE)
    with pytest.raises(BadImageError, match=r"(3|7)\.png") as caught:
        both_parts(data)
    assert "--on-bad-image skip" in str(caught.value) and "\n" not in str(caught.value)


def test_a_fault_of_the_machine_is_never_skipped(pictures, monkeypatch):
    data = open_dataset("folder", pictures, image_shape=SHAPE, on_bad_image="skip")

    def refuse(*_arguments, **_options):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        data.train.read(np.arange(2))
    assert data.bad == {}


def test_statistics_pass_over_skipped_images(pictures):
    for i in range(10):
        (pictures / "dog" / f"{i}.png").write_bytes(b"broken")  # so that some of them are in train
    data = open_dataset("folder", pictures, image_shape=SHAPE, on_bad_image="skip")
    images, labels = data.train.read(np.arange(len(data.train)))
    levels = images[labels == 0, 0, 0, 0] / 255
    assert np.any(labels == UNREADABLE) and len(levels)
    assert np.allclose(data.mean, levels.mean(), rtol=1e-6) and np.allclose(data.std, levels.std(), rtol=1e-6)


def test_statistics_of_nothing_readable(pictures):
    for path in pictures.glob("*/*.png"):
        path.write_bytes(b"broken")
    data = open_dataset("folder", pictures, image_shape=SHAPE, on_bad_image="skip")
    with pytest.raises(ValueError, match="expected readable images, got none among 16"):
        _ = data.mean
