"""What devices of one host cost each other, and how much the time of a gradient varies: seen on real gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..engine.layers import NetSpec
from ..engine.network import Network
from ..kernels.device import Device
from .fit import relative_spread
from .gauge import elapsed, filled

LEAST_GRADIENTS = 5


@dataclass(frozen=True)
class Crowd:
    """contention: busy devices -> how many times longer a gradient takes than its kernels alone, as the model adds
    them up; jitter: relative standard deviation of its time with one device busy; off: (time by the model) / (time) - 1
    of every gradient measured, after that factor."""

    contention: dict[int, float]
    jitter: float
    off: list[float]


@dataclass(frozen=True)
class Trial:
    """A gradient to measure, and what the model says that it takes (s) when nothing else runs."""

    spec: NetSpec
    subbatch: int
    modelled: float


def measure_crowd(devices: Sequence[Device], trials: Sequence[Trial], conv: str, seconds: float,
                  report: Callable[[], None] = lambda: None) -> Crowd:
    """Run gradients of each trial on the first device, on the first two, ... on all of them at once."""
    ratios: dict[int, list[float]] = {}
    jitters: list[float] = []
    for trial in trials:
        networks = [Network(trial.spec, device, trial.subbatch, conv_algo=conv) for device in devices]
        for count in range(1, len(devices) + 1):
            times = _at_once(networks[:count], trial, seconds)
            ratios.setdefault(count, []).append(float(np.median(times)) / trial.modelled)
            if count == 1:
                jitters.append(relative_spread(times))
            report()
    contention = {count: float(np.median(found)) for count, found in ratios.items()}
    off = [contention[1] / ratio - 1 for ratio in ratios[1]]
    return Crowd(contention, float(np.median(jitters)), off)


def _at_once(networks: Sequence[Network], trial: Trial, seconds: float) -> np.ndarray:
    """Seconds of gradients on all these networks, each in its own thread, while all of them are busy."""
    start = threading.Barrier(len(networks))
    done: list[list[float]] = [[] for _ in networks]
    turns = max(LEAST_GRADIENTS, round(seconds / trial.modelled))
    failures: list[BaseException] = []

    def run(network: Network, times: list[float]) -> None:
        try:
            _gradients(network, trial, turns, start, times)
        except BaseException as error:
            failures.append(error)
            start.abort()

    threads = [threading.Thread(target=run, args=pair) for pair in zip(networks, done, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return np.concatenate(done)


def _gradients(network: Network, trial: Trial, turns: int, start: threading.Barrier, times: list[float]) -> None:
    device = network.device
    (C, H, W), n = trial.spec.in_shape, trial.subbatch
    x, labels = filled(device, (C, n, H, W)), device.zeros(n, np.int32)
    network.gradient(x, labels, 1.0)  # compiles, and measures algorithms
    device.synchronize()
    start.wait()
    for _ in range(turns):
        times.append(elapsed(device, lambda: network.gradient(x, labels, 1.0)))
