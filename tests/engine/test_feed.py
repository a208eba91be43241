"""Feeder, augmentation and worker: what reaches the network."""

from __future__ import annotations

import numpy as np
import pytest
from sprint.engine import nets
from sprint.engine.augment import Augment
from sprint.engine.data import Batch, Loader, open_dataset
from sprint.engine.feed import Feeder
from sprint.engine.network import Network
from sprint.engine.worker import Worker


@pytest.fixture(scope="module")
def dataset():
    return open_dataset("synthetic", image_shape=(3, 9, 12), classes=4, limit=40)


def test_normalised_images_and_labels(dataset, fast):
    batch = next(Loader(dataset.train, 5, threads=0))
    x, labels, n = Feeder(fast, dataset, 8).put(batch)
    expected = (batch.images / 255.0 - dataset.mean) / dataset.std
    assert n == 5
    np.testing.assert_allclose(x, expected.transpose(3, 0, 1, 2), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(labels, batch.labels)


def test_a_label_outside_the_classes_is_named(dataset, fast):
    batch = next(Loader(dataset.train, 3, threads=0))
    wrong = Batch(batch.images, np.array([0, 4, 1], np.int32), batch.indices, 0, 0)
    with pytest.raises(ValueError, match="4 at sample 1"):
        Feeder(fast, dataset, 3).put(wrong)


def test_no_range_is_no_warp(dataset, fast):
    batch = next(Loader(dataset.train, 4, threads=0))
    still = Feeder(fast, dataset, 4, augment=Augment(0, 0, 0)).put(batch)[0].copy()
    plain = Feeder(fast, dataset, 4).put(batch)[0]
    np.testing.assert_allclose(still, plain, rtol=1e-4, atol=1e-4)


def test_a_warp_is_a_function_of_seed_epoch_and_sample():
    augment, sizes = Augment(mirror=True), ((9, 12), (9, 12))
    alone = augment.affine(np.array([7]), 2, 5, *sizes)
    among = augment.affine(np.array([3, 7, 9]), 2, 5, *sizes)
    np.testing.assert_array_equal(alone[0], among[1])
    for other in (augment.affine(np.array([7]), 3, 5, *sizes), augment.affine(np.array([7]), 2, 6, *sizes)):
        assert (other != alone).any()


def test_warps_stay_in_their_ranges_and_fill_them():
    augment = Augment(rotation=20, scale=0.2, shift=0.1)
    m = augment.affine(np.arange(4000), 0, 1, (20, 20), (20, 20)).astype(np.float64)
    zoom = np.hypot(m[:, 0], m[:, 3])
    angle = np.rad2deg(np.arctan2(m[:, 3], m[:, 0]))
    shift = m[:, :3] @ [9.5, 9.5, 1] - 9.5
    for values, bound in ((zoom - 1, 0.2), (angle, 20), (shift, 2)):
        assert np.abs(values).max() <= bound * 1.001
        assert values.min() < -0.95 * bound
        assert values.max() > 0.95 * bound
        assert abs(values.mean()) < 0.05 * bound


def test_worker_gives_sums_and_adds_deposits(dataset, fast):
    spec = nets.build("cnn-a", 9, width=0.1, classes=4)
    narrow = open_dataset("synthetic", image_shape=spec.in_shape, classes=4, limit=40)
    network = Network(spec, fast, 4, seed=1)
    worker = Worker(network, Loader(narrow.train, 4, threads=0), Feeder(fast, narrow, 4))
    weights = np.random.default_rng(0).standard_normal(worker.n_params).astype(np.float32) * 0.1
    worker.fetch(weights)
    place = worker.state()
    loss, samples = worker.compute()
    gradient = network.grads.flat.copy()
    buffer = np.full(worker.n_params, np.nan, np.float32)
    worker.deposit(buffer, add=False, scale=-0.5)
    np.testing.assert_allclose(buffer, -0.5 * gradient, rtol=1e-6)
    worker.restore(place)
    assert worker.compute() == (loss, samples)
    worker.deposit(buffer, add=True, scale=-0.5)
    np.testing.assert_allclose(buffer, -gradient, rtol=1e-6)
    worker.close()


def test_weight_decay_counts_once_a_sample(dataset, fast):
    spec = nets.build("cnn-a", 9, width=0.1, classes=4)
    narrow = open_dataset("synthetic", image_shape=spec.in_shape, classes=4, limit=40)
    buffers = []
    for decay in (0.0, 0.125):
        network = Network(spec, fast, 4, seed=1)
        worker = Worker(network, Loader(narrow.train, 4, threads=0), Feeder(fast, narrow, 4), decay)
        _, samples = worker.compute()
        buffers.append(np.empty(worker.n_params, np.float32))
        worker.deposit(buffers[-1], add=False, scale=2.0)
    expected = buffers[0] + 2.0 * samples * 0.125 * network.weights.flat
    np.testing.assert_allclose(buffers[1], expected, rtol=1e-5, atol=1e-6)


def test_a_new_division_goes_on_where_the_job_was(dataset, fast):
    """After 20 of 40 samples two shares split what is left, each sample once."""
    spec = nets.build("cnn-a", 9, width=0.1, classes=4)
    narrow = open_dataset("synthetic", image_shape=spec.in_shape, classes=4, limit=40)
    seen = []
    for share in range(2):
        worker = Worker(Network(spec, fast, 5, seed=1), Loader(narrow.train, 5, threads=0), Feeder(fast, narrow, 5))
        worker.divide(share, 2, 20)
        batches = [next(worker.loader) for _ in range(2)]
        assert [b.epoch for b in batches] == [0, 0]
        seen += [int(i) for b in batches for i in b.indices]
    first_half = {int(i) for rank in range(2) for b in (Loader(narrow.train, 10, rank=rank, size=2, threads=0),)
                  for i in next(b).indices}
    assert len(set(seen)) == 20
    assert not first_half & set(seen)
