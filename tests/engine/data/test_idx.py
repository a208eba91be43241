"""IDX files: what is whole is read, what is damaged is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from sprint.engine.data import idx, open_dataset

FULL_MNIST = Path(__file__).resolve().parents[4] / "shared" / "data" / "mnist"


def one_line(folder, name="mnist", kind=ValueError):
    with pytest.raises(kind) as caught:
        open_dataset(name, folder, image_shape=(1, 5, 7))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_reads_packed_and_plain(mnist_like, rng):
    images = np.random.default_rng(20160809).integers(0, 256, (30, 5, 7), np.uint8)
    data = open_dataset("mnist", mnist_like, image_shape=(1, 5, 7))
    assert (len(data.train), len(data.test), data.classes) == (30, 10, 10)
    pixels, labels = data.train.read(np.arange(30))
    assert np.array_equal(pixels[..., 0], images) and labels.tolist() == [i % 10 for i in range(30)]
    assert "not the original" in data.provenance


def test_names_with_a_dot(mnist_like):
    for path in list(mnist_like.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(open_dataset("mnist", mnist_like, image_shape=(1, 5, 7)).train) == 30


@pytest.mark.parametrize("cut", [0, 3, 11, 700, 1065])
def test_truncated_plain_file(mnist_like, cut):
    packed = mnist_like / "train-images-idx3-ubyte.gz"
    content = gzip.decompress(packed.read_bytes())
    packed.unlink()
    (mnist_like / "train-images-idx3-ubyte").write_bytes(content[:cut])
    message = one_line(mnist_like)
    assert "train-images-idx3-ubyte" in message and "download the four MNIST files again" in message


@pytest.mark.parametrize("cut", [5, 40, -9, -4])
def test_truncated_packed_file(mnist_like, cut):
    packed = mnist_like / "train-images-idx3-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:cut])
    message = one_line(mnist_like)
    assert "whole gzip file" in message and "train-images-idx3-ubyte.gz" in message


def test_flipped_bit_in_packed_file(mnist_like):
    packed = mnist_like / "t10k-images-idx3-ubyte.gz"
    content = bytearray(packed.read_bytes())
    content[len(content) // 2] ^= 4
    packed.write_bytes(content)
    assert "t10k-images-idx3-ubyte.gz" in one_line(mnist_like)


def test_too_long_file(mnist_like):
    labels = mnist_like / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes() + b"\0")
    assert "expected 18 bytes for (10,), got 19" in one_line(mnist_like)


def test_missing_file(mnist_like):
    (mnist_like / "t10k-labels-idx1-ubyte").unlink()
    assert "t10k-labels-idx1-ubyte.gz, got none" in one_line(mnist_like, kind=FileNotFoundError)


def test_wrong_kind_of_file(mnist_like, write_idx):
    write_idx(mnist_like / "train-labels-idx1-ubyte", np.zeros((30, 5, 7), np.uint8))
    assert "expected magic 00000801, got 00000803" in one_line(mnist_like)
    (mnist_like / "train-labels-idx1-ubyte").write_text("<html>404 Not Found</html>")
    assert "expected magic 00000801, got 3c68746d" in one_line(mnist_like)


def test_counts_must_agree(mnist_like, write_idx):
    write_idx(mnist_like / "train-labels-idx1-ubyte", np.zeros(29, np.uint8))
    assert "expected 30 labels, got 29" in one_line(mnist_like)


@pytest.mark.parametrize("shape", [(30, 0, 7), (30, 5, 0), (30, 0, 0)])
def test_images_without_pixels(mnist_like, write_idx, shape):
    (mnist_like / "train-images-idx3-ubyte.gz").unlink()
    write_idx(mnist_like / "train-images-idx3-ubyte", np.zeros(shape, np.uint8))
    message = one_line(mnist_like)
    assert f"1 pixel or more a side, got {shape}" in message and "train-images-idx3-ubyte" in message


def test_label_out_of_range_and_the_general_set(mnist_like, write_idx):
    write_idx(mnist_like / "t10k-labels-idx1-ubyte", np.full(10, 25, np.uint8))
    assert "labels 0..9, got 25" in one_line(mnist_like)
    assert open_dataset("idx", mnist_like, image_shape=(1, 5, 7)).classes == 26


def test_wrong_checksum(mnist_like, monkeypatch):
    size = len(gzip.decompress((mnist_like / "train-images-idx3-ubyte.gz").read_bytes()))
    monkeypatch.setitem(idx.ORIGINAL, "train-images", (size, "ab" * 32))
    message = one_line(mnist_like)
    assert "expected sha256 abababababab..., got" in message and "is damaged: download" in message
    assert open_dataset("idx", mnist_like, image_shape=(1, 5, 7)).train is not None


@pytest.mark.skipif(not FULL_MNIST.is_dir(), reason="full MNIST is not beside the repository")
def test_full_mnist():
    data = open_dataset("mnist", FULL_MNIST, image_shape=(1, 28, 28))
    assert (len(data.train), len(data.test), data.classes) == (60000, 10000, 10)
    assert "sha256 of the originals verified" in data.provenance
    assert np.allclose(data.mean, 0.1307, atol=5e-5) and np.allclose(
        data.std, 0.3081, atol=5e-5
    )  # as published
    assert np.bincount(data.test.read(np.arange(10000))[1]).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
