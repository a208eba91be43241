"""What threads that share a host cost each other: seen on whole gradients, and on the real loops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..distributed.options import Options
from ..distributed.ranks import Comm
from ..distributed.sprint import Sprint
from ..distributed.telemetry import UPDATE_TERMS, WORKER_TERMS
from ..engine.augment import Augment
from ..engine.config import TrainConfig
from ..engine.data import Loader, open_dataset
from ..engine.feed import Feeder
from ..engine.layers import NetSpec
from ..engine.network import Network
from ..engine.worker import Worker
from ..kernels.device import Device
from .gauge import elapsed, filled

LEAST_GRADIENTS = 5
STARTING = 0.2  # share of a run's turns in which the loops are still finding their pace


@dataclass(frozen=True)
class Trial:
    """Gradients of a net to measure."""

    spec: NetSpec
    subbatch: int
    conv: str

    def network(self, device: Device) -> Network:
        """Its network, kernels compiled and algorithms chosen."""
        network = Network(self.spec, device, self.subbatch, conv_algo=self.conv)
        self.gradient(network)()
        return network

    def gradient(self, network: Network) -> Callable[[], None]:
        """A call that makes one gradient."""
        device, (C, H, W), n = network.device, self.spec.in_shape, self.subbatch
        x, labels = filled(device, (C, n, H, W)), device.zeros(n, np.int32)
        return lambda: network.gradient(x, labels, 1.0)


def gradients_at_once(devices: Sequence[Device], trial: Trial, turns: int) -> np.ndarray:
    """Seconds of gradients on all these devices, each in its own thread, while all of them are busy."""
    networks = [trial.network(device) for device in devices]
    start = threading.Barrier(len(networks))
    done: list[list[float]] = [[] for _ in networks]
    failures: list[BaseException] = []

    def run(network: Network, times: list[float]) -> None:
        try:
            call = trial.gradient(network)
            start.wait()
            times += [elapsed(network.device, call) for _ in range(max(turns, LEAST_GRADIENTS))]
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


@dataclass(frozen=True)
class Loops:
    """Mean seconds of a turn of both loops by term, as the telemetry has them."""

    worker: dict[str, float]
    update: dict[str, float]

    @property
    def t_gpu(self) -> float:
        """Of a whole turn of a GPU thread."""
        return sum(self.worker.values())

    @property
    def t_update(self) -> float:
        """Of a whole turn of an update thread."""
        return sum(self.update.values())


def median_loops(runs: Sequence[Loops]) -> Loops:
    """Term by term, so that what disturbed a run does no harm."""
    return Loops(_medians([run.worker for run in runs]), _medians([run.update for run in runs]))


def _medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.median([row[name] for row in rows])) for name in rows[0]}


def run_loops(comm: Comm, devices: Sequence[Device], trial: Trial, turns: int) -> Loops:
    """Train in the paper's free loop for so many turns of each worker, weights left as they are; a collective."""
    workers = [_worker(device, trial, comm.rank * len(devices) + index, comm.size * len(devices))
               for index, device in enumerate(devices)]
    weights = devices[0].download(workers[0].network.weights.flat)
    job = Sprint(comm, workers, weights, Options(lambda *_: 0.0, form="mean", min_gradients=0, check_every=0,
                                                 diverged_at=0), config_hash="0" * 12)
    job.start(turns * trial.subbatch * comm.size * len(devices))
    job.join()
    job.close()
    worker = np.concatenate([_settled(clock.recent) for clock in job.telemetry.worker_clocks])
    update = _settled(job.telemetry.update_clock.recent)
    return Loops(dict(zip(WORKER_TERMS, mean_of_all(comm, worker), strict=True)),
                 dict(zip(UPDATE_TERMS, mean_of_all(comm, update), strict=True)))


def mean_of_all(comm: Comm, rows: np.ndarray) -> list[float]:
    """Mean (k,) of the rows (n, k) of all ranks; some may have none, where others took all the turns. A collective."""
    sums = comm.gather_all([float(len(rows)), *rows.sum(axis=0).tolist()]).sum(axis=0)
    return (sums[1:] / sums[0]).tolist()


def _settled(rows: np.ndarray) -> np.ndarray:
    return rows[int(STARTING * len(rows)):]


def _worker(device: Device, trial: Trial, share: int, shares: int) -> Worker:
    spec = trial.spec
    dataset = open_dataset("synthetic", image_shape=spec.in_shape, classes=max(2, spec.classes))
    loader = Loader(dataset.train, trial.subbatch, rank=share, size=shares)
    return Worker(trial.network(device), loader, Feeder(device, dataset, trial.subbatch, augment=Augment(mirror=True)),
                  TrainConfig("mlp").weight_decay)
