"""Workers of the engine with their part of the data, as each algorithm divides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine.data import Loader
from ..engine.session import Session
from ..engine.worker import Worker

Part = Callable[[int, int], tuple[int, int]]  # (share, shares) -> first sample of the mini-batch, samples of it


class OwnShare(Worker):
    """`sprint`: each worker goes through a share of its own, in an order of its own, as fast as it can.

    The order of an epoch is dealt out like cards, so shares differ by one sample at most. A worker whose share is
    empty, because there are fewer samples than workers, gives nothing.
    """

    empty = False

    def compute(self) -> tuple[float, int]:
        """See Worker."""
        return (0.0, 0) if self.empty else super().compute()

    def divide(self, share: int, shares: int, samples: int) -> None:
        """See Worker."""
        total = len(self.loader.split)
        self.empty = share >= total
        if not self.empty:
            super().divide(share, min(shares, total), samples)


class UnionShare(Worker):
    """`sync`: all workers go through one order together, each taking its part of the next mini-batch.

    So the mini-batches are those of a single device whose sub-batch is the sum of theirs, at the end of an epoch too,
    where some workers find less or nothing; and the place in the data is the same for all.
    """

    def __init__(self, worker: Worker, part: Part) -> None:
        super().__init__(worker.network, worker.loader, worker.feeder, worker.weight_decay)
        self._part = part

    def divide(self, share: int, shares: int, samples: int) -> None:
        """Take the part of `share` from now on, at the place where all are."""
        old, place = self.loader, self.loader.state()
        first, union = self._part(share, shares)
        self.loader = Loader(old.split, old.subbatch, place["seed"], bool(place["shuffle"]), first=first, union=union,
                             threads=old.threads)
        old.close()
        self.loader.restore(place)

    def go_to(self, epoch: int, position: int) -> None:
        """Go on at sample `position` of the order of `epoch`."""
        self.loader.restore({**self.loader.state(), "epoch": epoch, "position": position})


def open_worker(session: Session, algorithm: str, part: Part, share: int, shares: int, samples: int) -> Worker:
    """The worker of `share` of `shares`, where `samples` have been used by the whole job."""
    plain = session.worker()
    plain.weight_decay = session.config.weight_decay
    worker: Worker
    if algorithm == "sync":
        worker = union = UnionShare(plain, part)
        union.go_to(*divmod(samples, len(plain.loader.split)))
    else:
        worker = OwnShare(plain.network, plain.loader, plain.feeder, plain.weight_decay)
    worker.divide(share, shares, samples)
    return worker


def resume_worker(worker: Worker, state: dict[str, Any]) -> None:
    """Go on where the worker was that gave `state`; in `sync` any worker's state tells the place of all.

    A state from before the data were divided anew, for a share that is no more, changes nothing.
    """
    if isinstance(worker, UnionShare):
        worker.go_to(state["epoch"], state["position"])
        worker.restore({**worker.state(), "step": state["step"]})
    elif all(state[key] == worker.state()[key] for key in ("rank", "size")):
        worker.restore(state)
