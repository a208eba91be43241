"""CIFAR in both formats: the same pixels, all counts checked, damage named with its cure."""

from __future__ import annotations

import hashlib
import os
import pickle

import numpy as np
import pytest
from sprint.engine.data import cifar, open_dataset

BOTH = pytest.mark.parametrize("binary", [False, True], ids=["python", "binary"])
SHAPE = (3, 32, 32)


def one_line(name, folder, kind=ValueError):
    with pytest.raises(kind) as caught:
        open_dataset(name, folder, image_shape=SHAPE)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@BOTH
@pytest.mark.parametrize(("name", "classes", "train"), [("cifar10", 10, 20), ("cifar100", 100, 4)])
def test_reads(cifar_like, name, classes, train, binary):
    folder, planes = cifar_like(name, binary)
    data = open_dataset(name, folder, image_shape=SHAPE)
    assert (len(data.train), len(data.test), data.classes) == (train, 4, classes)
    pixels, labels = data.train.read(np.arange(train))
    assert np.array_equal(pixels, planes[:train].transpose(0, 2, 3, 1))
    assert labels.tolist() == [i % 10 for i in range(train)]
    assert np.array_equal(data.test.read(np.arange(4))[0], planes[train:].transpose(0, 2, 3, 1))


@BOTH
def test_reads_the_folder_an_archive_unpacks_to(cifar_like, tmp_path, binary):
    folder, _ = cifar_like("cifar10", binary)
    home = folder / f"cifar-10-batches-{'bin' if binary else 'py'}"
    files = list(folder.iterdir())
    home.mkdir()
    for path in files:
        path.rename(home / path.name)
    assert len(open_dataset("cifar10", folder, image_shape=SHAPE).train) == 20


def test_class_names(cifar_like):
    folder, _ = cifar_like("cifar10", False)
    names = [f"kind {k}" for k in range(10)]
    (folder / "batches.meta").write_bytes(
        pickle.dumps({b"label_names": [n.encode() for n in names]}, protocol=2)
    )
    assert open_dataset("cifar10", folder, image_shape=SHAPE).class_names == names
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names[:9]}))
    assert "expected 10 class names, got 9" in one_line("cifar10", folder)


def test_class_names_binary(cifar_like):
    folder, _ = cifar_like("cifar10", True)
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert open_dataset("cifar10", folder, image_shape=SHAPE).class_names == list("abcdefghij")


@pytest.mark.parametrize("cut", [0, 1, 100, 6000, -1])
def test_truncated_python_batch(cifar_like, cut):
    folder, _ = cifar_like("cifar10", False)
    path = folder / "data_batch_3"
    path.write_bytes(path.read_bytes()[:cut])
    message = one_line("cifar10", folder)
    assert str(path) in message and "unpack cifar-10-python.tar.gz again" in message


@pytest.mark.parametrize(
    ("cut", "reason"), [(0, "multiple of 3073"), (9000, "multiple of 3073"), (9219, "got 3")]
)
def test_truncated_binary_batch(cifar_like, cut, reason):
    """Also at the end of a record: all training batches are of one size."""
    folder, _ = cifar_like("cifar10", True)
    path = folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:cut])
    message = one_line("cifar10", folder)
    assert str(path) in message and reason in message and "unpack cifar-10-binary.tar.gz again" in message


@BOTH
def test_missing_batch(cifar_like, binary):
    folder, _ = cifar_like("cifar10", binary)
    name = "data_batch_4.bin" if binary else "data_batch_4"
    (folder / name).unlink()
    assert name in one_line("cifar10", folder, FileNotFoundError)


def test_nothing_there(tmp_path):
    message = one_line("cifar100", tmp_path, FileNotFoundError)
    assert "expected train or train.bin" in message and "unpack cifar-100-python.tar.gz there" in message


def test_wrong_checksum(cifar_like, monkeypatch):
    folder, _ = cifar_like("cifar10", False)
    for name in ("data_batch_1", "data_batch_2"):
        monkeypatch.setitem(cifar.ORIGINAL, name, (4, hashlib.md5((folder / name).read_bytes()).hexdigest()))
    open_dataset("cifar10", folder, image_shape=SHAPE)
    path = folder / "data_batch_2"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    message = one_line("cifar10", folder)
    assert "expected md5" in message and f"{path} is damaged" in message


@BOTH
def test_label_out_of_range(cifar_like, binary):
    folder, _ = cifar_like("cifar10", binary)
    path = folder / ("data_batch_5.bin" if binary else "data_batch_5")
    if binary:
        path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    else:
        path.write_bytes(pickle.dumps({"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 2, 10]}))
    assert "labels 0..9, got" in one_line("cifar10", folder)


@pytest.mark.parametrize(
    "batch",
    [
        {"labels": [0] * 4},
        {"data": np.zeros((4, 3072), np.uint8)},
        {"data": np.zeros((4, 3072), np.uint8), "labels": [0] * 3},
        {"data": np.zeros((4, 3071), np.uint8), "labels": [0] * 4},
        {"data": np.zeros((4, 3072), np.int64), "labels": [0] * 4},
        {"data": np.zeros((4, 3072), np.uint8), "labels": [0.5] * 4},
        [1, 2, 3],
    ],
    ids=["no data", "no labels", "3 labels", "3071 pixels", "int64", "fractions", "a list"],
)
def test_other_content(cifar_like, batch):
    folder, _ = cifar_like("cifar10", False)
    (folder / "test_batch").write_bytes(pickle.dumps(batch))
    assert f"{folder / 'test_batch'}: unpack" in one_line("cifar10", folder)


def test_malicious_batch_runs_nothing(cifar_like, tmp_path):
    folder, _ = cifar_like("cifar10", False)

    class Attack:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Attack()}))
    message = one_line("cifar10", folder)
    assert not (tmp_path / "owned").exists()
    assert "mkdir, which data does not need" in message and "data_batch_1" in message
