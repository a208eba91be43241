"""The calls that the model counts are those that the engine makes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sprint.bench.dry import DryDevice
from sprint.bench.work import GradientWork
from sprint.engine.nets import build
from sprint.engine.network import Network
from sprint.engine.shapes import table, training_flops
from sprint.kernels.conv import MEASURED
from sprint.kernels.host import HostDevice

UNLIKE_LAUNCH = ("col2im", "max_pool_backward")  # counted by columns and by inputs, launched by something else
SMALL = [("cnn-a", 24, 0.125, 7), ("cnn-b", 30, 0.125, 5), ("lenet", 17, 0.4, 10), ("mlp", 3, 0.01, 4)]


def op_of(kernel):
    """The op that a kernel of some special form belongs to."""
    if kernel.startswith("max_pool"):
        return "max_pool_backward" if "backward" in kernel else "max_pool"
    return kernel


def calls_of(spec, subbatch, conv="explicit", kind="host", limit=None):
    """The counted calls of one sub-batch in order: (name, sizes, times)."""
    work = GradientWork(spec, subbatch, conv, DryDevice(kind), limit)
    return [(call.name, tuple(int(size) for size in call.sizes), int(call.times))
            for part in work.parts for call in part[0] if call.times > 0]


def made_by_engine(spec, subbatch, limit=None):
    """The calls of one Network.gradient, recorded at the device: op or GEMM path, and sizes where a launch tells."""
    device, log = HostDevice(threads=1), []
    launch, sgemm, native = device.launch, device.sgemm, device.native

    def record_launch(family, kernel, work, *args, **options):
        elements = args[0].size if work.kind == "rows" else work.count
        log.append((op_of(kernel), (elements,)))
        launch(family, kernel, work, *args, **options)

    def record_sgemm(a, b, c, *, trans_a=False, trans_b=False, **options):
        path = "sgemm." + "nt"[trans_a] + "nt"[trans_b]
        log.append((path, (*c.shape, a.shape[0] if trans_a else a.shape[1])))
        sgemm(a, b, c, trans_a=trans_a, trans_b=trans_b, **options)

    def record_native(name, subject, function, *args):
        log.append(("tiles." + "nt"[args[0]] + "nt"[args[1]], subject))
        return native(name, subject, function, *args)

    device.launch, device.sgemm, device.native = record_launch, record_sgemm, record_native
    network = Network(spec, device, subbatch, conv_algo="explicit", workspace_bytes=limit)
    log.clear()
    network.gradient(np.zeros((spec.in_shape[0], subbatch, *spec.in_shape[1:]), np.float32),
                     np.zeros(subbatch, np.int32), 1.0)
    return log


def repeated(calls):
    """Names and sizes as often as they are made, sorted."""
    return sorted((name, () if name in UNLIKE_LAUNCH else sizes) for name, sizes, *times in calls
                  for _ in range(times[0] if times else 1))


@pytest.mark.parametrize(("name", "size", "width", "classes"), SMALL)
@pytest.mark.parametrize("subbatch", [1, 3, 65])
def test_counted_calls_are_the_engines(name, size, width, classes, subbatch):
    spec = build(name, image_size=size, width=width, classes=classes)
    assert repeated(calls_of(spec, subbatch)) == repeated(made_by_engine(spec, subbatch))


def test_counted_calls_are_the_engines_when_a_workspace_limit_makes_chunks():
    spec = build("cnn-a", image_size=24, width=0.125, classes=7)
    limit = 2 * table(spec)[1].column_bytes  # two images of the largest layer: 5 images run as 2, 2 and 1
    counted = calls_of(spec, 5, limit=limit)
    assert ("sgemm.nn", (8, 2 * 20 * 20, 72), 2) in counted
    assert ("sgemm.nn", (8, 20 * 20, 72), 1) in counted
    assert repeated(counted) == repeated(made_by_engine(spec, 5, limit))


@pytest.mark.parametrize("net", ["cnn-a", "cnn-b", "cnn-c"])
def test_gemms_do_the_arithmetic_that_the_shapes_say(net):
    spec = build(net)
    flops = sum(2 * math.prod(sizes) * times for name, sizes, times in calls_of(spec, 1) if len(sizes) == 3)
    assert flops == training_flops(spec)


@pytest.mark.parametrize("conv", ["explicit", "implicit"])
def test_both_algorithms_do_the_same_arithmetic_forward_and_for_the_filters(conv):
    work = GradientWork(build("cnn-a"), [1, 6], conv, DryDevice("cuda"), None)
    convolutions = [call for part in work.parts for call in part[0] if call.stage == "conv3"
                    and call.group == "gemm" and ".backward_data" not in call.name and ".tn" not in call.name]
    macs = [sum(call.times * math.prod(call.sizes) for call in convolutions)]
    np.testing.assert_allclose(macs[0], 2 * 128 * 9 * 64 * 194**2 * np.array([1, 6]))


def test_sizes_of_the_paper_for_its_first_layers():
    """Oyama et al. 2016: convolution is x'^2 N by m_l by c^2 m_(l-1); the im2col buffer at 6 samples has 1013 MiB."""
    counted = calls_of(build("cnn-a"), 6, kind="cuda")
    assert ("sgemm.nn", (32, 6 * 394**2, 27), 1) in counted
    assert ("sgemm.nt", (64, 288, 6 * 392**2), 1) in counted
    assert ("sgemm.tn", (288, 6 * 392**2, 64), 1) in counted
    assert ("softmax_cross_entropy", (6000,), 1) in counted
    assert max(sizes[0] for name, sizes, _ in counted if name == "im2col") * 4 == pytest.approx(1013 * 2**20, rel=1e-3)


@pytest.mark.parametrize("kind", ["host", "cuda"])
def test_automatic_choice_keeps_every_way_that_the_engine_measures(kind):
    work = GradientWork(build("cnn-a", image_size=24, width=0.125), 2, "auto", DryDevice(kind), None)
    ways = [part for part in work.parts if len(part) > 1]
    assert len(ways) == 5 + 5 + 4  # forward, filters, images of all layers but the first
    assert {len(part) for part in ways} == {len(MEASURED[kind])}
    assert "implicit.forward" in {call.name for way in ways[0] for call in way}


def test_an_algorithm_that_fuses_pool_and_relu_launches_neither():
    names = {name for name, _, _ in calls_of(build("cnn-a", image_size=24, width=0.125), 2, "implicit", "host")}
    assert not names & {"max_pool", "max_pool_backward", "im2col", "col2im"}
