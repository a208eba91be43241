"""A steady training step takes no memory, copies nothing and compiles nothing: any net, algorithm and optimiser."""

from __future__ import annotations

import subprocess
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from sprint.engine import nets
from sprint.engine.data import Dataset, Loader
from sprint.engine.feed import Feeder
from sprint.engine.network import Network
from sprint.engine.optim import open_optimizer
from sprint.engine.worker import Worker
from sprint.kernels import conv, source
from sprint.kernels.conv_choice import Choices
from sprint.kernels.host import HostDevice

STEPS = 10
OBJECTS_BYTES = 12_000  # views, numbers and frames that Python makes and drops on the way
TAKING = ("empty", "zeros", "upload", "download", "copy")
CASES = [("cnn-a", 28, "auto", "momentum"), ("cnn-a", 28, "explicit", "sgd"), ("cnn-a", 28, "implicit", "adagrad"),
         ("lenet", 33, "auto", "momentum"), ("mlp", 9, "auto", "momentum")]


def forbid(monkeypatch, *functions):
    """Let calls of (owner, name) fail the test from now on."""
    def fail(name):
        def called(*args, **options):
            raise AssertionError(f"a steady step called {name}")
        return called

    for owner, name in functions:
        monkeypatch.setattr(owner, name, fail(name))


def traced(step):
    """Median over some steps of the most bytes that Python and NumPy held at once, beyond those held before.

    The median, for now and then CPython itself makes its table of names anew.
    """
    tracemalloc.start()
    peaks = []
    for _ in range(STEPS):
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        step()
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    return np.median(peaks)


def resident_bytes():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def trained(name, size, algo, optimizer, n=3):
    """(network, step, what step uses) of a small net on a fixed batch."""
    spec = nets.build(name, size, width=0.5 if name != "mlp" else 0.05, classes=40)
    network = Network(spec, HostDevice(threads=1 if algo == "explicit" else 2), n, conv_algo=algo)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((spec.in_shape[0], n, *spec.in_shape[1:])).astype(np.float32)
    labels = rng.integers(0, spec.classes, n).astype(np.int32)
    update = open_optimizer(optimizer, network.weights, network.grads).update

    def step():
        network.gradient(x, labels, 1 / n)
        update(1e-4)

    return network, step


@pytest.mark.parametrize(("name", "size", "algo", "optimizer"), CASES)
def test_gradient_and_update_take_copy_and_compile_nothing(name, size, algo, optimizer, monkeypatch):
    network, step = trained(name, size, algo, optimizer)
    step()
    step()
    assert network.grads.flat.nbytes > 5 * OBJECTS_BYTES  # so that one copy of it would be seen
    forbid(monkeypatch, *[(HostDevice, name) for name in TAKING], (np, "copyto"), (np, "ascontiguousarray"),
           (source, "build"), (source, "build_host_library"), (source, "read"), (subprocess, "run"))
    peak, before = traced(step), resident_bytes()
    for _ in range(STEPS):
        step()
    assert peak < OBJECTS_BYTES
    assert resident_bytes() - before < 64 << 10


def test_a_step_that_takes_memory_is_seen(monkeypatch):
    """The watch of the test above works: a copy of the weights in every step, by three ways to make one."""
    network, step = trained("lenet", 33, "auto", "momentum")
    weights = network.weights.flat

    def watched(copy):
        def careless():
            step()
            copy()
        return careless

    step()
    assert traced(watched(lambda: weights + 1)) > weights.nbytes
    assert traced(watched(lambda: network.device.empty(weights.shape))) > weights.nbytes
    forbid(monkeypatch, (HostDevice, "download"))
    with pytest.raises(AssertionError, match="download"):
        watched(network.weights.download)()


def test_auto_measures_in_the_first_step_only(monkeypatch, tmp_path):
    measured = []

    def fastest(device, candidates, call):
        measured.append(candidates)
        return candidates[-1]

    monkeypatch.setattr(conv, "fastest", fastest)
    monkeypatch.setattr(conv.Conv.__init__, "__defaults__", ("auto", None, Choices(tmp_path)))
    _, step = trained("cnn-a", 28, "auto", "momentum", n=2)
    step()
    first = len(measured)
    step()
    assert len(measured) == first == 5 * 3 - 1  # directions of 5 layers, no gradient to the images


class Memory:
    """A split whose images lie in memory."""

    def __init__(self, n, shape):
        self.shape, rng = shape, np.random.default_rng(2)
        self.images = rng.integers(0, 256, (n, *shape[1:], shape[0]), np.uint8)

    def __len__(self):
        return len(self.images)

    def read(self, indices, out=None):
        out = np.empty_like(self.images[indices]) if out is None else out[: len(indices)]
        for row, index in zip(out, indices, strict=True):
            row[...] = self.images[index]
        return out, indices.astype(np.int32) % 7


def test_a_workers_step_copies_labels_and_losses_only(monkeypatch):
    """From the loader's buffer to the gradient: images are read where they lie."""
    n, spec = 4, nets.build("lenet", 40, classes=7)
    split, device = Memory(8 * n, spec.in_shape), HostDevice(threads=2)
    dataset = Dataset("memory", [*"abcdefg"], spec.in_shape, split, split, "made up", {})
    worker = Worker(Network(spec, device, n), Loader(split, n, threads=0), Feeder(device, dataset, n))
    worker.compute()
    worker.compute()
    copied = []

    def counted(name, honest):
        def call(self, *args):
            copied.append((name, args[0].nbytes))
            return honest(self, *args)
        return call

    for name in ("copy", "download"):
        monkeypatch.setattr(HostDevice, name, counted(name, getattr(HostDevice, name)))
    forbid(monkeypatch, *[(HostDevice, name) for name in TAKING[:3]], (source, "build"), (subprocess, "run"))
    with worker.loader:
        assert traced(worker.compute) < OBJECTS_BYTES < 4 * n * 40 * 40
    assert copied == [("copy", 4 * n), ("download", 4 * n)] * STEPS
