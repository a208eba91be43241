from __future__ import annotations

import math

import numpy as np
import pytest
from sprint.kernels import softmax as ops

F, I = np.float32, np.int32
SHAPES = [(1, 3), (2, 1), (10, 5), (37, 33), (1025, 2), (4097, 1)]


def naive(logits, labels, scale):
    """Probabilities, losses and gradient of one sample after the other, in float64."""
    K, N = logits.shape
    p, loss, gradient = np.zeros((K, N)), np.zeros(N), np.zeros((K, N))
    for n in range(N):
        z = [float(v) for v in logits[:, n]]
        total = math.fsum(math.exp(v - max(z)) for v in z)
        loss[n] = math.log(total) + max(z) - z[labels[n]]
        for k in range(K):
            p[k, n] = math.exp(z[k] - max(z)) / total
            gradient[k, n] = scale * (p[k, n] - (k == labels[n]))
    return p, loss, gradient


def problem(rng, shape):
    return (3 * rng.standard_normal(shape)).astype(F), rng.integers(0, shape[0], shape[1]).astype(I)


@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities_losses_and_gradients(device, rng, poison, shape):
    logits, labels = problem(rng, shape)
    p, loss, gradient, alone = poison(shape), poison(shape[1]), poison(shape), poison(shape[1])
    ops.softmax(device, logits, p)
    ops.softmax_cross_entropy(device, logits, labels, loss, gradient, -0.25)
    ops.softmax_cross_entropy(device, logits, labels, alone)
    reference = naive(logits, labels, -0.25)
    # the sum of 4,097 exponentials, each right to 2 units in the last place, in float32
    np.testing.assert_allclose(p, reference[0], rtol=2e-5, atol=1e-9)
    np.testing.assert_allclose(loss, reference[1], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(gradient, reference[2], rtol=2e-5, atol=1e-7)
    np.testing.assert_array_equal(alone, loss)


@pytest.mark.parametrize("spread", [1e-3, 3.0])
def test_sums_of_many_classes_keep_their_digits(device, rng, poison, spread):
    K, N = (10**6, 2) if device.mode == "fast" else (20011, 2)
    logits, labels = (spread * rng.standard_normal((K, N))).astype(F), rng.integers(0, K, N).astype(I)
    p, loss, gradient, alone = poison((K, N)), poison(N), poison((K, N)), poison(N)
    ops.softmax(device, logits, p)
    ops.softmax_cross_entropy(device, logits, labels, loss, gradient)
    ops.softmax_cross_entropy(device, logits, labels, alone)
    exact = np.exp(logits - logits.max(0).astype(float))
    expected = exact / exact.sum(0)
    # as of 1,000 classes: one float32 sum of 10^6 was off by 5e-3
    np.testing.assert_allclose(p, expected, rtol=5e-6)
    losses = np.log(exact.sum(0)) + logits.max(0) - logits[labels, range(N)].astype(float)
    np.testing.assert_allclose(loss, losses, rtol=1e-6)
    np.testing.assert_array_equal(alone, loss)
    expected[labels, range(N)] -= 1
    np.testing.assert_allclose(gradient, expected, rtol=5e-6)


def test_gradient_is_the_slope_of_the_loss(device, rng, poison):
    logits, labels = problem(rng, (7, 3))
    gradient, h = poison((7, 3)), 1e-5
    ops.softmax_cross_entropy(device, logits, labels, poison(3), gradient)
    for k, n in np.ndindex(7, 3):
        step = np.zeros((7, 3))
        step[k, n] = h
        up, down = (naive(logits.astype(float) + s * step, labels, 1)[1].sum() for s in (1, -1))
        assert math.isclose(gradient[k, n], (up - down) / (2 * h), abs_tol=1e-6)


def test_in_place(device, rng, poison):
    logits, labels = problem(rng, (300, 3))
    p, gradient, loss, in_place = poison((300, 3)), poison((300, 3)), poison(3), poison(3)
    ops.softmax(device, logits, p)
    ops.softmax_cross_entropy(device, logits, labels, loss, gradient)
    first, second = logits.copy(), logits.copy()
    ops.softmax(device, first, first)
    ops.softmax_cross_entropy(device, second, labels, in_place, second)
    assert first.tobytes() == p.tobytes() and second.tobytes() == gradient.tobytes()
    assert in_place.tobytes() == loss.tobytes()


def test_large_logits_do_not_overflow(device, poison):
    logits = np.array([[1000, 3e38, -1000, 88], [0, -3e38, -1000, -88], [-1000, -3e38, -1000, 89]], F)
    p, loss, gradient = poison((3, 4)), poison(4), poison((3, 4))
    ops.softmax(device, logits, p)
    np.testing.assert_allclose(p[:, :3].T, [[1, 0, 0], [1, 0, 0], [1 / 3] * 3], rtol=1e-6)
    for label, first, second in ((0, 0, 0), (1, 1000, np.finfo(F).max), (2, 2000, np.finfo(F).max)):
        ops.softmax_cross_entropy(device, logits, np.full(4, label, I), loss, gradient)
        assert np.isfinite(loss).all() and np.isfinite(gradient).all()
        np.testing.assert_allclose(loss[:3], [first, second, math.log(3)], rtol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverged_sample_says_so_and_leaves_the_others_alone(device, rng, poison, value):
    logits, labels = problem(rng, (40, 3))
    logits[17, 1] = value
    loss, gradient, p = poison(3), np.zeros((40, 3), F), np.zeros((40, 3), F)
    ops.softmax_cross_entropy(device, logits, labels, loss, gradient)
    ops.softmax(device, logits, p)
    assert np.isnan(loss).tolist() == [False, True, False]
    assert np.isnan(p).any(0).tolist() == np.isnan(gradient).any(0).tolist() == [False, True, False]


@pytest.mark.parametrize("wrong", [10, -1, 2**31 - 1, -(2**31)])
def test_a_label_that_is_no_class_reads_nothing(device, rng, poison, wrong):
    logits, labels = problem(rng, (10, 3))
    labels[1] = wrong
    for gradient in (None, poison((10, 3))):
        loss = np.zeros(3, F)
        ops.softmax_cross_entropy(device, logits, labels, loss, gradient)
        assert np.isnan(loss).tolist() == [False, True, False]
    rank = poison(3, I)
    ops.label_rank(device, logits, labels, rank)
    assert rank[1] == 10 and rank[0] < 10


@pytest.mark.parametrize("shape", SHAPES)
def test_rank_counts_the_classes_before_the_label(device, rng, poison, shape):
    logits, labels = problem(rng, shape)
    logits = np.round(logits)  # many ties
    rank = poison(shape[1], I)
    ops.label_rank(device, logits, labels, rank)
    for n, label in enumerate(labels):
        order = sorted(range(shape[0]), key=lambda k, n=n: (-logits[k, n], k))
        assert rank[n] == order.index(label)


def test_rank_of_a_net_that_says_nothing_or_diverged(device, poison):
    labels, rank = np.array([0, 3, 9], I), poison(3, I)
    ops.label_rank(device, np.zeros((10, 3), F), labels, rank)
    assert rank.tolist() == [0, 3, 9]  # right once in 10, not always
    ops.label_rank(device, np.full((10, 3), np.nan, F), labels, rank)
    assert rank.tolist() == [10, 10, 10]
    logits = np.zeros((10, 3), F)
    logits[0], logits[5] = 1, np.nan
    ops.label_rank(device, logits, labels, rank)
    assert rank[0] == 1  # the label's logit is the greatest number, but another is not a number


def test_no_samples_no_launch(device, forbid_launch):
    forbid_launch()
    logits, labels, loss = np.empty((10, 0), F), np.empty(0, I), np.empty(0, F)
    ops.softmax(device, logits, logits)
    ops.softmax_cross_entropy(device, logits, labels, loss)
    ops.softmax_cross_entropy(device, logits, labels, loss, logits)
    ops.label_rank(device, logits, labels, labels.copy())


def test_labels_are_checked_with_index_and_label():
    ops.check_labels(np.array([0, 9, 5]), 10)
    ops.check_labels(np.array([], np.int64), 10)
    for labels, message in (([0, 10], "expected 0 to 9, got 10 at sample 1"),
                            ([3, -1, 12], "-1 at sample 1 and 1 more"),
                            ([2**32 + 3], "4294967299 at sample 0")):
        with pytest.raises(ValueError, match=message):
            ops.check_labels(np.array(labels), 10)
    with pytest.raises(ValueError, match="18446744073709551615 at sample 0"):
        ops.check_labels(np.array([2**64 - 1], np.uint64), 10)
    with pytest.raises(TypeError, match="expected integers, got float64"):
        ops.check_labels(np.array([1.0]), 10)


def test_wrong_arguments_are_refused(fast):
    logits, labels, loss = np.ones((4, 3), F), np.zeros(3, I), np.ones(3, F)
    with pytest.raises(ValueError, match=r"softmax: expected p\(4, 3\), got \(3, 4\)"):
        ops.softmax(fast, logits, np.ones((3, 4), F))
    with pytest.raises(ValueError, match=r"expected logits\(K,N\), K from 1"):
        ops.softmax(fast, np.ones((0, 3), F), np.ones((0, 3), F))
    with pytest.raises(ValueError, match=r"expected labels\(3,\), got \(4,\)"):
        ops.softmax_cross_entropy(fast, logits, np.zeros(4, I), loss)
    with pytest.raises(ValueError, match=r"expected loss\(3,\), got \(1, 3\)"):
        ops.softmax_cross_entropy(fast, logits, labels, loss.reshape(1, 3))
    with pytest.raises(ValueError, match="expected dlogits"):
        ops.softmax_cross_entropy(fast, logits, labels, loss, np.ones((3, 4), F))
    with pytest.raises(ValueError, match="expected scale finite"):
        ops.softmax_cross_entropy(fast, logits, labels, loss, logits, math.nan)
    with pytest.raises(ValueError, match=r"label_rank: expected rank\(3,\)"):
        ops.label_rank(fast, logits, labels, np.zeros(4, I))
    with pytest.raises(TypeError, match="int32, got int64"):
        ops.softmax_cross_entropy(fast, logits, labels.astype(np.int64), loss)
    with pytest.raises(TypeError, match="float32, got float64"):
        ops.softmax(fast, logits.astype(float), logits)
    with pytest.raises(ValueError, match="contiguous"):
        ops.softmax(fast, np.ones((3, 4), F).T, np.ones((4, 3), F))
