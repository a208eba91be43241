"""Seconds of the steps of both loops, measured on the very code that runs them, with nothing to compute in between."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from ..distributed.buffers import Deposit, GradientBuffer, VersionedWeights
from ..distributed.options import Options
from ..distributed.progress import Progress
from ..distributed.ranks import Single
from ..distributed.telemetry import UPDATE_TERMS, WORKER_TERMS, Telemetry
from ..distributed.update import Updater
from ..distributed.watch import Pulse
from ..engine.augment import Augment
from ..engine.config import TrainConfig
from ..engine.data import Loader, open_dataset
from ..engine.data.split import Split
from ..engine.feed import Feeder
from ..engine.layers import NetSpec
from ..engine.worker import Worker
from ..kernels.device import Device
from .fit import fit_curve
from .gauge import QUIET
from .machine import PER_PARAMETER, Linear

Array = np.ndarray
GPU_STEPS = ("fetch_weights", "compute_update_val", "update_gradient")
BUFFERS = 3  # GradBufs of the node that is measured: the first of a sum costs something else than the others
FULL = (BUFFERS, 1, 0)  # of them when an update comes
LEAST_TURNS, MOST_TURNS = 5, 60
IMAGE_TURNS = 40
READY = 1.5  # times the reading of a batch after which it lies ready


def measure_steps(device: Device, parameters: Iterable[int], seconds: float) -> dict[str, Linear]:
    """Every step that costs something a parameter, fitted over some counts; about `seconds` for each count."""
    counts = sorted(set(parameters))
    seen = [_Node(device, count).turns(seconds) for count in counts]
    names = (*PER_PARAMETER, "take_gradient", "clear_gradient")
    return {name: fit_curve(counts, [max(times[name], 1e-9) for times in seen]) for name in names}


class _Node:
    """Buffers, weights and update thread's work of one node, and the devices' ends of its loops."""

    def __init__(self, device: Device, parameters: int) -> None:
        self.weights = VersionedWeights(np.zeros(parameters, np.float32))
        self.buffers = [GradientBuffer(parameters, 0) for _ in range(BUFFERS)]
        self.telemetry = Telemetry(BUFFERS)
        self.updater = Updater(Single(), self.weights, self.buffers, Options(lambda *_: 1e-3, form="mean"),
                               self.telemetry, Progress())
        self.workers = [_idle_worker(device, parameters) for _ in range(BUFFERS)]
        self.pulse = Pulse("calibrate")

    def turns(self, seconds: float) -> dict[str, float]:
        """Seconds by step; in turn all GradBufs are full when the update comes, only one, and none."""
        begin, number = time.perf_counter(), 0
        while number < LEAST_TURNS or (number < MOST_TURNS and time.perf_counter() - begin < seconds):
            for full in FULL:
                for index in range(full):
                    self._deposit(index)
                self.telemetry.update_clock.restart()
                self.updater.step(self.pulse)
                self.telemetry.update_clock.finish()
            number += 1
        return self._means()

    def _deposit(self, index: int) -> None:
        """A worker's turn without a gradient: fetch, and deposit what lies there."""
        clock, worker = self.telemetry.worker_clocks[index], self.workers[index]
        clock.restart()
        read = self.weights.fetch(worker, -1, clock)
        self.buffers[index].deposit(worker, Deposit(index, read.version, 0, 1, 1.0), lambda late: -1e-3, clock)
        clock.move("update_gradient", "compute_update_val", worker.times["compute_update_val"])
        clock.finish()

    def _means(self) -> dict[str, float]:
        worker = _quiet(np.concatenate([clock.recent for clock in self.telemetry.worker_clocks]), WORKER_TERMS)
        rows = self.telemetry.update_clock.recent
        update = _quiet(rows, UPDATE_TERMS)
        every, alone, none = (_quiet(rows[turn::len(FULL)], UPDATE_TERMS)["sum_gradient"] for turn in range(len(FULL)))
        return {**update, **{name: worker[name] for name in GPU_STEPS}, "take_gradient": alone,
                "sum_gradient": (every - alone) / (BUFFERS - 1), "clear_gradient": none}


def _quiet(rows: Array, terms: Sequence[str]) -> dict[str, float]:
    """Seconds by term, of the turns that nothing disturbed."""
    return dict(zip(terms, np.quantile(rows, QUIET, axis=0).tolist(), strict=True))


def _idle_worker(device: Device, parameters: int) -> Worker:
    """The engine's worker with weights and a gradient, but no net to make one."""
    flats = [SimpleNamespace(flat=device.zeros(parameters)) for _ in range(2)]
    network = cast(Any, SimpleNamespace(device=device, weights=flats[0], grads=flats[1]))
    return Worker(network, cast(Any, None), cast(Any, None), TrainConfig("mlp").weight_decay)


def measure_images(device: Device, spec: NetSpec, subbatches: Iterable[int]) -> dict[float, tuple[float, float]]:
    """Values of the images of a sub-batch -> seconds to get it from the loader, and to deform it on the device.

    As a worker does it: the loader has read ahead, so that only its handing over is waited for as long as reading takes
    no longer than a gradient; and while the images are deformed its thread reads on, which is not for nothing.
    """
    dataset = open_dataset("synthetic", image_shape=spec.in_shape, classes=max(2, spec.classes))
    seen: dict[float, tuple[float, float]] = {}
    for n in subbatches:
        feeder = Feeder(device, dataset, n, augment=Augment(mirror=True))
        pause = READY * _reading(dataset.train, n)
        with Loader(dataset.train, n) as loader:
            times = np.array([_image_turn(device, loader, feeder, pause) for _ in range(IMAGE_TURNS)])
        load, deform = np.median(times, axis=0).tolist()
        seen[float(n * math.prod(spec.in_shape))] = (load, deform)
    return seen


def _image_turn(device: Device, loader: Loader, feeder: Feeder, pause: float) -> tuple[float, float]:
    time.sleep(pause)
    begin = time.perf_counter()
    batch = next(loader)
    loaded = time.perf_counter()
    feeder.put(batch)
    device.synchronize()
    return loaded - begin, time.perf_counter() - loaded


def _reading(split: Split, n: int) -> float:
    with Loader(split, n, threads=0) as loader:
        next(loader)
        begin = time.perf_counter()
        next(loader)
        return time.perf_counter() - begin
