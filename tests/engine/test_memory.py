"""The memory plan is what a network really takes, and finds the largest sub-batch that fits."""

from __future__ import annotations

import numpy as np
import pytest
from sprint.engine import memory, nets
from sprint.engine.network import Network
from sprint.engine.optim import open_optimizer
from sprint.kernels.host import HostDevice


class Meter(HostDevice):
    """Counts the bytes that are asked for."""

    taken = 0

    def empty(self, shape, dtype=np.float32):
        array = super().empty(shape, dtype)
        self.taken += array.nbytes
        return array

    def zeros(self, shape, dtype=np.float32):
        array = super().zeros(shape, dtype)
        self.taken += array.nbytes
        return array


@pytest.mark.parametrize("name", ["cnn-a", "lenet", "mlp"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("algo", ["explicit", "implicit"])
def test_plan_equals_what_is_taken(name, optimizer, algo):
    spec = nets.build(name, 28 if name != "mlp" else 8, width=0.25, classes=10)
    device = Meter(threads=1)
    plan = memory.plan(spec, device, 5, conv_algo=algo, optimizer=optimizer)
    net = Network(spec, device, 5, conv_algo=algo)
    open_optimizer(optimizer, net.weights, net.grads)
    per_sample = 8 * 5  # loss and rank of each sample
    assert device.taken == pytest.approx(plan.total - plan.images + per_sample, abs=16)


def test_activations_before_a_pool_are_not_kept():
    """conv+ReLU+pool keeps the pooled output and its indices only; two scratch buffers serve everything else."""
    spec, device = nets.build("cnn-a"), HostDevice(threads=1)
    plan = memory.plan(spec, device, 1, conv_algo="explicit")
    everything = sum(4 * np.prod(p.out_shape) for p in spec.placed)
    assert plan.activations < 0.75 * everything


def test_largest_subbatch_fits_and_the_next_does_not():
    spec, device = nets.build("cnn-a", 92), HostDevice(threads=1)
    available = 500 << 20
    n = memory.largest_subbatch(spec, device, available, conv_algo="explicit")
    assert memory.plan(spec, device, n, conv_algo="explicit").total <= available
    assert memory.plan(spec, device, n + 1, conv_algo="explicit").total > available
    assert memory.largest_subbatch(spec, device, 1 << 20, conv_algo="explicit") == 0


def test_a_workspace_limit_lowers_the_plan_and_names_what_one_image_needs():
    spec, device = nets.build("cnn-a", 92), HostDevice(threads=1)
    free = memory.plan(spec, device, 16, conv_algo="explicit").workspace
    limited = memory.plan(spec, device, 16, conv_algo="explicit", workspace_bytes=16 << 20).workspace
    assert limited < free - (16 << 20)
    with pytest.raises(ValueError, match="workspace"):
        memory.plan(spec, device, 16, conv_algo="explicit", workspace_bytes=1 << 20)
