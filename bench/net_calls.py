"""Every kernel call that training a net makes, found by letting the engine make them on a device that runs nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

from ..engine.augment import Augment
from ..engine.data.dataset import open_dataset
from ..engine.data.loader import Batch
from ..engine.feed import Feeder
from ..engine.layers import NetSpec
from ..engine.network import Network
from ..engine.optim import open_optimizer
from ..engine.stages import ConvStage
from ..kernels.device import Device
from .cases import TABLE
from .convolutions import ALGORITHMS
from .dry import DryDevice, Launch
from .op import Case, Op
from .problems import Problem
from .selection import OPS, case_of


def net_cases(spec: NetSpec, device: Device, subbatch: int) -> list[Case]:
    """Cases of all calls of one training step and of an evaluation, each once, with its number of calls in the step.

    Convolutions are there in their explicit pieces (im2col, sgemm, bias) and whole, by every algorithm that the device
    has for them; `auto` takes the fastest. Calls that only evaluation or --augment makes have 0 calls.
    """
    recorder = DryDevice(device.kind, device.threads)
    network = Network(spec, recorder, subbatch, conv_algo="explicit")
    step = _step_launches(network, recorder)
    calls = Counter(problem_of(launch) for launch in step)
    calls.update(_convolutions(network, subbatch))
    for launch in _other_launches(network, recorder):
        calls.setdefault(problem_of(launch), 0)
    cases = [case_of(problem, count) for problem, count in calls.items()]
    return [case for case in cases if not case.op.missing(device, case.problem)]


def _step_launches(network: Network, recorder: DryDevice) -> list[Launch]:
    optimizer = open_optimizer("momentum", network.weights, network.grads)
    feeder, batch = _feeder(network, recorder, None)
    recorder.launches.clear()
    x, labels, n = feeder.put(batch)
    network.gradient(x, labels, 1.0 / n)
    optimizer.update(0.01)
    return list(recorder.launches)


def _other_launches(network: Network, recorder: DryDevice) -> list[Launch]:
    feeder, batch = _feeder(network, recorder, Augment())
    recorder.launches.clear()
    x, labels, _ = feeder.put(batch)
    network.evaluate(x, labels)
    return list(recorder.launches)


def _feeder(network: Network, recorder: DryDevice, augment: Augment | None) -> tuple[Feeder, Batch]:
    (C, H, W), n = network.spec.in_shape, network.subbatch
    dataset = open_dataset("synthetic", image_shape=(C, H, W), classes=max(2, network.spec.classes))
    images = np.zeros((n, H, W, C), np.uint8)
    return Feeder(recorder, dataset, n, augment=augment), Batch(images, np.zeros(n, np.int32), np.arange(n), 0, 0)


def _convolutions(network: Network, n: int) -> Iterable[Problem]:
    """Whole convolutions by every algorithm; the first stage has no gradient to its input."""
    for number, stage in enumerate(network.stages):
        if isinstance(stage, ConvStage):
            shape = stage.conv(n).shape
            sizes = dict(zip("nchwkrs", (shape.N, shape.C, shape.H, shape.W, shape.K, shape.R, shape.S), strict=True))
            sizes |= dict(zip(("sh", "sw", "ph", "pw"), (*shape.stride, *shape.pad), strict=True))
            relu = ("relu",) * stage.stage.relu
            for algorithm in ALGORITHMS:
                yield OPS["conv_forward"].grammar.make(sizes, (*relu, algorithm))
                yield OPS["conv_backward_filter"].grammar.make(sizes, (algorithm,))
                if number:
                    yield OPS["conv_backward_data"].grammar.make(sizes, (algorithm,))


def problem_of(launch: Launch) -> Problem:
    """The problem of the table that a launch is. Raises RuntimeError when the table lacks the kernel."""
    op = op_of(launch.family, launch.kernel)
    if op.from_launch:
        return op.grammar.make(*op.from_launch(launch.arguments))
    values, keys = launch.arguments, (*op.grammar.keys, *op.grammar.defaults)
    words = tuple(word for word in op.grammar.words if values.get(word))
    return op.grammar.make({key: int(values[key]) for key in keys if key in values}, words)


def op_of(family: str, kernel: str) -> Op:
    """The op that a kernel belongs to. Raises RuntimeError when no op of the table launches it."""
    for op in TABLE:
        if op.family == family and re.fullmatch(op.kernels, kernel):
            return op
    raise RuntimeError(f"bench: expected kernel {kernel} of {family}.cu in the table of cases.py, got none")
