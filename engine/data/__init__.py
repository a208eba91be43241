"""Readers of image sets and the loader that prefetches their batches (NumPy and Pillow only, no device)."""

from __future__ import annotations

from .dataset import NAMES, Dataset, open_dataset
from .image import BadImageError
from .loader import Batch, Loader
from .split import UNREADABLE, Split

__all__ = ["NAMES", "UNREADABLE", "BadImageError", "Batch", "Dataset", "Loader", "Split", "open_dataset"]
