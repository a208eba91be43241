"""What a run needs, opened in order and checked before anything long begins: device, data, net, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..kernels import image
from ..kernels.device import Device, open_device
from . import memory
from .augment import Augment
from .checkpoint import Checkpoint
from .config import TrainConfig
from .data import Dataset, Loader, open_dataset
from .errors import UsageError
from .feed import Feeder
from .layers import NetSpec
from .memory import MemoryPlan
from .nets import build
from .network import Network
from .worker import Worker

SPLIT_SEED = 0  # one fixed split into training and test images, whatever the seed of the run
PHOTOS = ("cifar10", "cifar100", "folder", "list", "synthetic")  # a mirrored digit is no digit


@dataclass
class Session:
    """What a run is made of. memory: the planned bytes; available: bytes that the device had before it."""

    config: TrainConfig
    device: Device
    dataset: Dataset
    spec: NetSpec
    memory: MemoryPlan
    available: int
    saved: Checkpoint | None

    @cached_property
    def network(self) -> Network:
        """The network with its buffers; weights are the saved ones, if any."""
        config = self.config
        network = Network(self.spec, self.device, config.subbatch, conv_algo=config.conv_algo,
                          workspace_bytes=_workspace_bytes(config), seed=config.seed)
        if self.saved:
            network.weights.upload(self.saved.weights)
        return network

    def worker(self, rank: int = 0, size: int = 1) -> Worker:
        """The network with its share of the training images."""
        config = self.config
        loader = Loader(self.dataset.train, config.subbatch, config.seed, rank=rank, size=size)
        augment = Augment(mirror=config.data in PHOTOS) if config.augment else None
        return Worker(self.network, loader, self.feeder(augment))

    def feeder(self, augment: Augment | None = None) -> Feeder:
        """Input buffers that normalise as the weights know it."""
        config = self.config
        feeder = Feeder(self.device, self.dataset, config.subbatch, augment=augment, seed=config.seed)
        if self.saved:
            feeder.mean, feeder.std = image.channel_statistics(self.device, self.saved.mean, self.saved.std)
        return feeder

    def peak_bytes(self) -> int:
        """The most bytes in use so far: of the whole process on the host, of the device's pool on cuda."""
        if self.device.kind == "host":
            return _process_peak()
        return self.available - self.device.memory().available


def open_session(config: TrainConfig, saved: Checkpoint | None = None,
                 wrap: Callable[[Device], Device] = lambda device: device) -> Session:
    """Open device (wrapped for whoever watches) and data for `config`, on the classes of `saved`; plan the memory.

    Raises UsageError when it does not fit, naming the largest sub-batch that would; and what opening raises.
    """
    device = wrap(open_device(config.device, threads=config.device_threads, math_mode=config.math))
    if config.math == "tf32" and device.kind == "host":
        raise UsageError(f"math: expected fp32 on {device.name}, got tf32")
    shape = build(config.net, config.image_size, config.width).in_shape
    dataset = open_dataset(
        config.data, config.data_dir, image_shape=shape, classes=config.classes, seed=SPLIT_SEED,
        class_names=saved.class_names if saved else None, limit=config.limit, on_bad_image=config.on_bad_image)
    spec = build(config.net, config.image_size, config.width, dataset.classes)
    available = device.memory().available
    return Session(config, device, dataset, spec, plan_memory(config, spec, device, available), available, saved)


def plan_memory(config: TrainConfig, spec: NetSpec, device: Device, available: int) -> MemoryPlan:
    """The memory of a run. Raises UsageError when there is less, naming the largest sub-batch that would fit."""
    options: dict[str, Any] = {"conv_algo": config.conv_algo,
                               "workspace_bytes": _workspace_bytes(config), "optimizer": config.optimizer}
    try:
        planned = memory.plan(spec, device, config.subbatch, **options)
    except ValueError as error:  # extents beyond what kernels index, or columns beyond --workspace
        raise UsageError(str(error)) from error
    if planned.total > available:
        largest = memory.largest_subbatch(spec, device, available, **options)
        cure = f"--subbatch {largest} would fit" if largest else "not even one image fits: a smaller --image-size?"
        raise UsageError(f"memory: expected a plan within the {gigabytes(available)} that {device.name} has, "
                         f"got {gigabytes(planned.total)} for --subbatch {config.subbatch}: {cure}")
    return planned


def _process_peak() -> int:
    """High-water mark of resident memory, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("peak: expected VmHWM in /proc/self/status, got none")


def _workspace_bytes(config: TrainConfig) -> int | None:
    return config.workspace * 10**6 if config.workspace else None


def gigabytes(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
