"""After the death of a rank: go on with the living from the newest version that any of them has published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from .ranks import Comm, RankFailed, label

T = TypeVar("T")


class Survivor(Protocol):
    """Who can go on without the dead: the updater, and the run that has it."""

    comm: Comm

    def survive(self, announce: bool = True) -> object: ...


def settled(survivor: Survivor, work: Callable[[], T]) -> T:
    """Return work(), made of collectives, when all living ranks have done it.

    If a rank dies in it, the living make it again from its beginning, all of them. Raises RankFailed without ULFM.
    """
    while True:
        try:
            result = work()
        except RankFailed:
            if not survivor.comm.can_shrink:
                raise
            survivor.survive()
            continue
        if survivor.comm.agree(True):
            return result
        survivor.survive(announce=False)


@dataclass(frozen=True)
class Recovery:
    """What the living agreed on."""

    adopted: bool  # `recv` now holds the update that this rank had missed
    first: int  # the first update that the new group makes
    dead: list[str]  # who is gone, as names for a message
    share: int  # the first of this rank's shares of the data: one share per worker
    shares: int  # of the whole job


def recover(comm: Comm, version: int, latest: np.ndarray, recv: np.ndarray, workers: int,
            announce: bool = True) -> Recovery:
    """Shrink `comm` to the living and bring this rank, at `version`, up to the newest published version.

    latest, recv: (n,) float32, the buffers of version `version` and of the update in progress. Ranks are in
    lock-step, so one may be behind by one version at most, and what the one ahead has published contains
    what the one behind sent. An update that nobody published is made again by the new group. Ranks that
    die meanwhile only start this over. `announce`: False where agree() has told this rank of the death.
    """
    before = dict(zip(comm.ids, (label(comm, rank) for rank in range(comm.size)), strict=True))
    while True:
        try:
            comm.shrink(announce)
            versions, shares = comm.gather_all([float(version), float(workers)]).astype(np.int64).T
            newest = int(versions.max())
            if versions.min() < newest - 1:
                raise RuntimeError(f"recover: expected versions {newest - 1} or {newest}, got {versions.tolist()}")
            if versions.min() < newest:
                root = int(versions.argmax())
                comm.broadcast(latest if comm.rank == root else recv, root)
            dead = [name for rank, name in before.items() if rank not in comm.ids]
            if not dead:
                raise RuntimeError(f"recover: expected a dead rank among {', '.join(before.values())}, got none")
            first = int(shares[:comm.rank].sum())
            return Recovery(version < newest, newest + 1, dead, first, int(shares.sum()))
        except RankFailed:
            announce = True
