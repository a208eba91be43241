"""From a loader's batch to device arrays: labels checked, images uploaded and made float32 or deformed by kernels."""

from __future__ import annotations

import numpy as np

from ..kernels import image, softmax
from ..kernels.device import Array, Device
from .augment import Augment
from .data import Batch, Dataset


class Feeder:
    """Input buffers of one worker for up to `subbatch` samples; `augment` None only normalises."""

    def __init__(self, device: Device, dataset: Dataset, subbatch: int, *, augment: Augment | None = None,
                 seed: int = 0) -> None:
        self.device, self.dataset, self.augment, self.seed = device, dataset, augment, seed
        C, H, W = dataset.shape
        self.mean, self.std = image.channel_statistics(device, dataset.mean.tolist(), dataset.std.tolist())
        self._x = device.empty(subbatch * C * H * W)
        self._labels = device.empty(subbatch, np.int32)
        self._affine = device.empty((subbatch, 6))
        on_host = device.kind == "host"
        self._images = None if on_host else device.empty((subbatch, H, W, C), np.uint8)

    def put(self, batch: Batch) -> tuple[Array, Array, int]:
        """(x (C,n,H,W) float32, labels (n,) int32, n) on the device; views that the next call overwrites.

        Raises ValueError naming a sample whose label is not a class.
        """
        n, (C, H, W) = len(batch.labels), self.dataset.shape
        softmax.check_labels(batch.labels, self.dataset.classes)
        x, labels = self._x[: C * n * H * W].reshape(C, n, H, W), self._labels[:n]
        self.device.copy(labels, batch.labels)
        with self.device.range("images deform"):
            self._images_into(x, batch, self._upload(batch.images))
        return x, labels, n

    def _images_into(self, x: Array, batch: Batch, images: Array) -> None:
        if self.augment is None:
            image.normalize(self.device, images, x, self.mean, self.std)
            return
        affine, size = self._affine[: len(batch.labels)], self.dataset.shape[1:]
        self.device.copy(affine, self.augment.affine(batch.indices, batch.epoch, self.seed, size, size))
        image.deform(self.device, images, affine, self.mean, self.std, x)

    def _upload(self, images: np.ndarray) -> Array:
        """The host's kernels read the loader's buffer itself."""
        if self._images is None:
            return images
        self.device.copy(self._images[: len(images)], images)
        return self._images[: len(images)]
