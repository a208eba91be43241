"""Whole nets: gradients against central differences of an independent float64 net, both algorithms, equal bytes."""

from __future__ import annotations

import numpy as np
import pytest
from sprint.engine import nets
from sprint.engine.layers import (
    Conv2D,
    Dense,
    Dropout,
    MaxPool2D,
    NetSpec,
    ReLU,
    Sigmoid,
    SoftmaxCrossEntropy,
)
from sprint.engine.network import Network
from sprint.engine.optim import open_optimizer
from sprint.kernels.host import HostDevice

ODD = NetSpec("odd", (2, 9, 12), (
    Conv2D(5, (3, 2), (2, 1), (0, 1)), ReLU(), MaxPool2D((2, 3), (1, 2), (1, 0)), Conv2D(7, (2, 3)), Sigmoid(),
    MaxPool2D(), Dense(6), ReLU(), Dense(4), SoftmaxCrossEntropy()))
NETS = {
    "odd": ODD,
    "cnn-a": nets.build("cnn-a", 28, width=0.1, classes=7),
    "cnn-b": nets.build("cnn-b", 13, width=0.1, classes=3),
    "lenet": nets.build("lenet", 17, width=0.2),
    "mlp": nets.build("mlp", 3, width=0.002, classes=5),
}


def reference_loss(spec: NetSpec, weights: dict[str, np.ndarray], x: np.ndarray, labels: np.ndarray) -> float:
    """Sum of losses in float64, sample by sample and window by window; x (n,C,H,W)."""
    total = 0.0
    for image, label in zip(x.astype(np.float64), labels, strict=True):
        a = image
        for placed in spec.placed:
            w, b = (weights.get(f"{placed.name}.{key}") for key in "wb")
            a = _reference_layer(placed.layer, a, w, b)
        a = a.ravel()
        total += np.log(np.exp(a - a.max()).sum()) + a.max() - a[label]
    return total


def _windows(a, window, stride, pad, fill):
    a = np.pad(a, ((0, 0), (pad[0], pad[0]), (pad[1], pad[1])), constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(a, window, axis=(1, 2))
    return view[:, :: stride[0], :: stride[1]]


def _reference_layer(layer, a, w, b):
    match layer:
        case Conv2D():
            windows = _windows(a, layer.window, layer.stride, layer.pad, 0.0)
            return np.einsum("chwrs,kcrs->khw", windows, w) + b[:, None, None]
        case MaxPool2D():
            return _windows(a, layer.window, layer.stride, layer.pad, -np.inf).max((3, 4))
        case Dense():
            return (w @ a.ravel() + b)[:, None, None]
        case ReLU():
            return np.maximum(a, 0)
        case Sigmoid():
            return 1 / (1 + np.exp(-a))
        case _:
            return a


def batch(spec: NetSpec, n: int, rng, device=None):
    C, H, W = spec.in_shape
    x = rng.standard_normal((C, n, H, W)).astype(np.float32)
    return x, rng.integers(0, spec.classes, n).astype(np.int32)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("algo", ["explicit", "implicit"])
def test_gradient_equals_central_differences_in_float64(name, algo, fast, rng):
    """Along random directions: |slope - reference| <= 1e-3 |slope| + 1e-4 (float32 sums; h = 1e-7 in float64)."""
    spec = NETS[name]
    net = Network(spec, fast, 3, conv_algo=algo, seed=1)
    for view in net.weights.views.values():  # biases away from zero, so that a forgotten one shows
        view += 0.05 * rng.standard_normal(view.shape).astype(np.float32)
    x, labels = batch(spec, 3, rng)
    net.grads.flat.fill(np.nan)
    net.gradient(x, labels, 0.5)
    weights = {k: v.astype(np.float64) for k, v in net.weights.download().items()}
    gradient = net.grads.download()
    images = x.transpose(1, 0, 2, 3)
    assert net.loss_sum() == pytest.approx(reference_loss(spec, weights, images, labels), rel=1e-4)
    for key in weights:
        direction = rng.standard_normal(weights[key].shape)
        h = 1e-7  # small: a step across a kink of ReLU or pool would show
        up = reference_loss(spec, {**weights, key: weights[key] + h * direction}, images, labels)
        down = reference_loss(spec, {**weights, key: weights[key] - h * direction}, images, labels)
        slope = 0.5 * (up - down) / (2 * h)
        assert (gradient[key] * direction).sum() == pytest.approx(slope, rel=1e-3, abs=1e-4), key


@pytest.mark.parametrize("name", NETS)
def test_explicit_and_implicit_agree(name, fast, rng):
    x, labels = batch(NETS[name], 4, rng)
    grads = []
    for algo in ("explicit", "implicit"):
        net = Network(NETS[name], fast, 4, conv_algo=algo, seed=3)
        net.gradient(x, labels, 1.0)
        grads.append(net.grads.flat.copy())
    scale = np.abs(grads[0]).max()
    np.testing.assert_allclose(grads[0], grads[1], rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("algo", ["explicit", "implicit"])
def test_training_twice_gives_equal_bytes(algo, rng):
    def train():
        device, generator = HostDevice(threads=2), np.random.default_rng(5)
        net = Network(NETS["cnn-a"], device, 6, conv_algo=algo, seed=2)
        optimizer = open_optimizer("momentum", net.weights, net.grads)
        for _ in range(20):
            net.gradient(*batch(net.spec, 6, generator), 1 / 6)
            optimizer.update(0.01)
        return net.weights.flat.tobytes()

    assert train() == train()


def test_smaller_batches_and_workspace_chunks_change_nothing(fast, rng):
    spec = NETS["cnn-a"]
    x, labels = batch(spec, 5, rng)
    whole = Network(spec, fast, 8, conv_algo="explicit", seed=1)
    whole.gradient(x, labels, 1.0)
    parts = Network(spec, fast, 5, conv_algo="explicit", workspace_bytes=200_000, seed=1)
    parts.gradient(x, labels, 1.0)
    assert parts._workspace.nbytes < whole._workspace.nbytes / 2
    np.testing.assert_allclose(parts.grads.flat, whole.grads.flat, rtol=1e-4, atol=1e-5)


def test_an_empty_batch_gives_zero_gradients_and_no_loss(fast):
    net = Network(NETS["cnn-a"], fast, 2)
    net.grads.flat.fill(np.nan)
    net.gradient(np.empty((3, 0, 28, 28), np.float32), np.empty(0, np.int32), 1.0)
    assert not net.grads.flat.any()
    assert net.loss_sum() == 0


def test_dropout_acts_in_training_only_and_repeats_by_step(fast, rng):
    spec = NetSpec("drop", (1, 1, 40), (Dense(64), Sigmoid(), Dropout(0.5), Dense(3), SoftmaxCrossEntropy()))
    net = Network(spec, fast, 4, seed=1)
    x, labels = batch(spec, 4, rng)
    assert net.forward(x).tobytes() == net.forward(x).tobytes()
    losses = []
    for step in (1, 2, 1):
        net.set_step(step)
        net.gradient(x, labels, 1.0)
        losses.append((net.loss_sum(), net.grads.flat.tobytes()))
    assert losses[0] == losses[2] != losses[1]


def test_evaluation_counts_ranks(fast, rng):
    spec = NETS["mlp"]
    net = Network(spec, fast, 6, seed=4)
    x, labels = batch(spec, 6, rng)
    logits = net.forward(x).copy()
    losses, ranks = net.evaluate(x, labels)
    own = logits[labels, np.arange(6)]
    np.testing.assert_array_equal(ranks, (logits > own).sum(0))
    expected = np.log(np.exp(logits.astype(np.float64)).sum(0)) - own
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, 9, 28, 28), (1, 2, 28, 28), (3, 2, 28, 27)])
def test_wrong_input_shapes_are_named(shape, fast):
    net = Network(NETS["cnn-a"], fast, 8)
    with pytest.raises(ValueError, match="network: expected"):
        net.forward(np.zeros(shape, np.float32))


def test_two_networks_in_two_threads_equal_the_serial_result(rng):
    """Each network owns its workspace: nothing is shared between two workers."""
    from concurrent.futures import ThreadPoolExecutor

    spec = NETS["cnn-a"]
    batches = [[batch(spec, 4, rng) for _ in range(25)] for _ in range(2)]

    def train(worker):
        net = Network(spec, HostDevice(worker, threads=1), 4, conv_algo="explicit", seed=worker)
        optimizer = open_optimizer("sgd", net.weights, net.grads)
        for x, labels in batches[worker]:
            net.gradient(x, labels, 0.25)
            optimizer.update(0.05)
        return net.weights.flat.tobytes()

    serial = [train(0), train(1)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train, range(2))) == serial


@pytest.mark.parametrize("favourite", ["implicit", "explicit"])
def test_a_smaller_last_batch_takes_the_algorithms_and_the_workspace_of_the_others(favourite, fast, rng, monkeypatch,
                                                                                      tmp_path):
    """Whatever a cache knows of the full sub-batch and does not know of another: nothing is timed for that one."""
    monkeypatch.setattr("sprint.kernels.conv_choice.CHOICES._used", {})
    monkeypatch.setattr("sprint.kernels.conv_choice.CHOICES._known", {})
    monkeypatch.setattr("sprint.kernels.conv_choice.CHOICES._folder", tmp_path)
    monkeypatch.setattr("sprint.kernels.conv.fastest", lambda device, candidates, call: next(
        (a for a in candidates if a.name == favourite), candidates[0]))
    spec = nets.build("cnn-a", 20, width=0.25, classes=5)
    x, labels = rng.standard_normal((3, 8, 20, 20)).astype(np.float32), rng.integers(0, 5, 8).astype(np.int32)
    Network(spec, fast, 8).gradient(x, labels, 1.0)  # now the choices for 8 images are known, for 3 they are not
    monkeypatch.setattr("sprint.kernels.conv.fastest", lambda *_a: pytest.fail("timed"))
    net = Network(spec, fast, 8)
    net.gradient(np.ascontiguousarray(x[:, :3]), labels[:3], 1.0)
    assert np.isfinite(net.loss_sum())
    net.evaluate(np.ascontiguousarray(x[:, :5]), labels[:5])
