"""A split whose images are files, decoded at each read; bad ones stop the run or are left out and listed."""

from __future__ import annotations

import numpy as np

from .image import BadImageError, Shape, read_image
from .split import UNREADABLE, Samples, prepare


class FileSplit:
    """Samples given by paths.

    Args: skip: give a bad image the label UNREADABLE instead of raising; bad: where path -> reason is noted.
    """

    def __init__(self, samples: Samples, shape: Shape, *, skip: bool, bad: dict[str, str]):
        from PIL import Image

        Image.init()  # loads every format now: its lazy loading is not safe between threads
        assert isinstance(samples.images, list)
        self.shape, self.labels, self._paths = shape, samples.labels, samples.images
        self._skip, self._bad = skip, bad

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: np.ndarray, out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """See `Split.read`. Raises: BadImageError unless bad images are skipped."""
        indices, rows = prepare(indices, len(self), self.shape, out)
        labels = self.labels[indices]
        for row, index in enumerate(indices):
            if not self._load(self._paths[index], rows[row]):
                rows[row], labels[row] = 0, UNREADABLE
        return rows, labels

    def _load(self, path: str, out: np.ndarray) -> bool:
        if path in self._bad:
            return False
        try:
            read_image(path, out)
        except BadImageError as error:
            if not self._skip:
                raise
            self._bad[path] = error.reason
            return False
        return True
