"""Batches of a split in a fixed order, read ahead by threads, resumable at any batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .order import epoch_order
from .prefetch import Prefetch
from .split import UNREADABLE, Split


@dataclass(frozen=True)
class Batch:
    """Images uint8 (n, H, W, C), labels int32 (n) and sample numbers int64 (n) of one step.

    `images` is a view of a buffer that the loader fills anew: use it before the next batch is asked for.
    `position` counts the samples of this rank's share of `epoch` that come before this batch.
    """

    images: np.ndarray
    labels: np.ndarray
    indices: np.ndarray
    epoch: int
    position: int


@dataclass(frozen=True)
class _Ticket:
    """Order for one batch, before it is read."""

    indices: np.ndarray
    epoch: int
    position: int


class Loader:
    """An iterator of batches over `epochs` epochs (None: without end), the last one of each perhaps smaller.

    Every epoch is a new order drawn from (seed, epoch) and dealt to `size` ranks; over all ranks each sample
    comes once. With `union`, each batch is a part of the next `union` samples of that order, those from `first`
    on, and may be empty at its end: ranks that share one order so make up the batches of a single rank.
    What comes does not depend on `threads`; with 0 the caller reads. Bad images that the split skips are missing
    from their batch. A failed read raises from the next `next()`; one more tries it again.
    Threads start with the first batch; close() ends them, best by `with Loader(...) as loader`.

    Raises: ValueError for a share without samples or a number out of range.
    """

    def __init__(
        self,
        split: Split,
        subbatch: int,
        seed: int = 0,
        shuffle: bool = True,
        *,
        rank: int = 0,
        size: int = 1,
        first: int = 0,
        union: int | None = None,
        threads: int = 1,
        epochs: int | None = None,
    ):
        if subbatch < 1 or threads < 0 or seed < 0:
            got = f"{subbatch}, {threads}, {seed}"
            raise ValueError(f"loader: expected subbatch >= 1, threads >= 0, seed >= 0, got {got}")
        if not 0 <= rank < size:
            raise ValueError(f"loader: expected 0 <= rank < size, got rank {rank}, size {size}")
        if first < 0 or (union is not None and union < first + subbatch):
            raise ValueError(f"loader: expected first + subbatch within the union, got {first} + {subbatch} of {union}")
        if len(split) < size:
            raise ValueError(f"loader: expected a sample for each of {size} ranks, got {len(split)}")
        self.split, self.subbatch, self.threads, self.epochs = split, subbatch, threads, epochs
        self.samples = -(-(len(split) - rank) // size)  # of this rank in one epoch
        self._first, self._union, self._stride = first, union, union or subbatch
        self.batches_per_epoch = -(-self.samples // self._stride)
        self._order = {"seed": seed, "shuffle": shuffle, "rank": rank, "size": size}
        self._epoch = self._position = 0  # of the batch to hand over next
        self._stream: Iterator[Batch] | None = None
        self._closed = False

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        """Return the next batch. Raises: what reading raised; RuntimeError after close()."""
        if self._closed:
            raise RuntimeError("loader: expected an open loader, got a closed one")
        for _ in range(self.batches_per_epoch):
            batch = self._read_next()
            self._epoch, self._position = batch.epoch, batch.position + self._stride
            if self._position >= self.samples:
                self._epoch, self._position = batch.epoch + 1, 0
            if len(batch.labels) or self._union:
                return batch
        raise ValueError(f"loader: expected a readable image in {self.samples} samples, got none")

    def state(self) -> dict[str, int]:
        """Return the place of the next batch and the order it belongs to; plain numbers, fit for JSON."""
        return {"epoch": self._epoch, "position": self._position, "samples": self.samples, **self._order}

    def restore(self, state: dict[str, int]) -> None:
        """Go to the place that state() gave. Raises: ValueError if it belongs to another order of samples."""
        for key, value in {"samples": self.samples, **self._order}.items():
            if state.get(key) != value:
                raise ValueError(f"loader: expected a state with {key} {value}, got {state.get(key)}")
        if not (0 <= state["position"] < self.samples and state["epoch"] >= 0):
            raise ValueError(f"loader: expected a position below {self.samples}, got {state['position']}")
        self._stop()
        self._epoch, self._position = state["epoch"], state["position"]

    def close(self) -> None:
        """End the threads and wait for them; a batch handed over before stays valid."""
        self._closed = True
        self._stop()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _read_next(self) -> Batch:
        """Take one batch from the stream; a failure or Ctrl-C drops the stream, to start again from here."""
        if self._stream is None:
            self._stream = self._open()
        try:
            return next(self._stream)
        except StopIteration:
            raise
        except BaseException:
            self._stop()
            raise

    def _open(self) -> Iterator[Batch]:
        c, h, w = self.split.shape
        buffers = [np.empty((self.subbatch, h, w, c), np.uint8) for _ in range(self.threads + 2)]
        if self.threads == 0:
            return (self._read(ticket, buffers[0]) for ticket in self._tickets())
        stream = Prefetch(self._tickets(), self._read, buffers, self.threads)
        stream.start()
        return stream

    def _stop(self) -> None:
        if isinstance(self._stream, Prefetch):
            self._stream.close()
        self._stream = None

    def _tickets(self) -> Iterator[_Ticket]:
        """Cut the orders of the epochs into batches, from the current place on."""
        epoch, first = self._epoch, self._position
        while self.epochs is None or epoch < self.epochs:
            order = epoch_order(len(self.split), epoch, **self._order)  # type: ignore[arg-type]
            for position in range(first, len(order), self._stride):
                start = position + self._first
                yield _Ticket(order[start : start + self.subbatch], epoch, position)
            epoch, first = epoch + 1, 0

    def _read(self, ticket: _Ticket, buffer: np.ndarray) -> Batch:
        images, labels = self.split.read(ticket.indices, buffer)
        indices, readable = ticket.indices, np.flatnonzero(labels != UNREADABLE)
        if len(readable) < len(labels):
            for row, source in enumerate(readable):
                images[row] = images[source]
            images, labels, indices = images[: len(readable)], labels[readable], indices[readable]
        return Batch(images, labels, indices, ticket.epoch, ticket.position)
