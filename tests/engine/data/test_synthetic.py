"""Synthetic images are a function of their number and can be learned."""

from __future__ import annotations

import numpy as np
import pytest
from sprint.engine.data import open_dataset


def make(shape=(3, 12, 20), **options):
    return open_dataset("synthetic", image_shape=shape, **options)


def test_an_image_depends_on_its_number_only():
    split = make().train
    images, labels = split.read(np.arange(50))
    for order in ([7, 3], [3], [49, 7, 7]):
        again, _ = make().train.read(np.array(order))
        assert np.array_equal(again, images[order])
    assert labels.tolist() == list(range(50))
    assert images[0, 0, :4, 0].tolist() == [158, 152, 78, 144], "the stream is part of what a seed means"


def test_parts_and_seeds_differ():
    first, other = make().train.read(np.arange(4))[0], make(seed=1).train.read(np.arange(4))[0]
    test = make().test.read(np.arange(4))[0]
    assert not np.array_equal(first, other) and not np.array_equal(first, test)


def test_a_thousand_classes_unless_told():
    data = make()
    assert data.classes == 1000 and len(data.train) == 10_000
    few = make(classes=3, limit=7)
    assert few.classes == 3 and (len(few.train), len(few.test)) == (7, 7)
    assert few.train.read(np.arange(7))[1].tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_nearest_class_mean_learns_it():
    """The mean of a few training images of each class names the class of test images far above chance."""
    data = make(classes=10)
    train, labels = data.train.read(np.arange(200))
    test, truth = data.test.read(np.arange(100))
    means = np.stack([train[labels == k].mean(axis=0) for k in range(10)])
    distance = ((test[:, None] - means[None]) ** 2).sum(axis=(2, 3, 4))
    assert np.mean(distance.argmin(axis=1) == truth) > 0.9


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 5, 3), (3, 61, 40)])
def test_constants_are_its_statistics(shape):
    data = make(shape, classes=200)
    pixels = data.train.read(np.arange(400))[0] / 255
    assert np.allclose(data.mean, pixels.mean(), atol=0.01) and np.allclose(data.std, pixels.std(), atol=0.01)
    assert data.mean.shape == data.std.shape == (shape[0],)
