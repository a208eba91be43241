"""Who computes what where: the cores and devices of each rank, and its part of the data."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..engine.config import TrainConfig
from ..engine.errors import UsageError
from ..kernels import cuda
from .ranks import Comm

CORES, WORD = 1024, 32  # cores of a host that are told apart; bits of a number that float64 holds exactly


def own_cores(comm: Comm) -> float:
    """Cores that this rank may count on: each that it may use, divided by the ranks of its host that may use it too.

    A collective. Launchers bind: mpirun -n 2 gives each rank one core of its own, and --bind-to none all to both.
    """
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    words = [0] * (CORES // WORD)
    for core in usable:
        words[core % CORES // WORD] |= 1 << (core % WORD)
    rows = comm.gather_all([float(word) for word in words])
    mine = comm.hosts[comm.rank]
    here = [[int(word) for word in row] for row, host in zip(rows, comm.hosts, strict=True) if host == mine]
    return sum(1 / sum(_has(row, core) for row in here) for core in range(CORES) if _has(words, core))


def _has(words: list[int], core: int) -> bool:
    return bool(words[core // WORD] >> (core % WORD) & 1)


@dataclass(frozen=True)
class Place:
    """The devices of one rank; threads: of each host device, None on cuda."""

    names: list[str]
    threads: int | None


def place(comm: Comm, config: TrainConfig, cores: float) -> Place:
    """The devices of this rank, one a worker: GPUs of their own, or host devices that share `cores`.

    Raises UsageError for a device with a number.
    """
    kind, numbered, _ = config.device.partition(":")
    if numbered:
        raise UsageError(f"device: expected auto, host or cuda with --algorithm {config.algorithm}, where each worker "
                         f"has its own, got {config.device}")
    if kind == "auto":
        kind = "host" if cuda.missing() else "cuda"
    if kind == "cuda":
        first = comm.local_rank * config.devices
        return Place([f"cuda:{first + t}" for t in range(config.devices)], None)
    threads = config.device_threads or max(1, int(cores / config.devices + 1e-6))
    return Place([f"host:{t}" for t in range(config.devices)], threads)


@dataclass(frozen=True)
class Layout:
    """Workers and sub-batch of every rank, by its number at the start. A share of the data belongs to one worker.

    ids: the ranks that are meant, in their order.
    """

    workers: dict[int, int]
    subbatch: dict[int, int]

    @classmethod
    def gather(cls, comm: Comm, workers: int, subbatch: int) -> Layout:
        """That of the whole job; a collective."""
        rows = comm.gather_all([float(workers), float(subbatch)])
        return cls({comm.ids[i]: int(row[0]) for i, row in enumerate(rows)},
                   {comm.ids[i]: int(row[1]) for i, row in enumerate(rows)})

    @property
    def ids(self) -> list[int]:
        """All ranks at the start."""
        return list(self.workers)

    @property
    def minibatch(self) -> int:
        """Samples of one gradient of every worker."""
        return sum(self.batches(self.ids))

    def batches(self, ids: list[int]) -> list[int]:
        """Sub-batch of every share."""
        return [self.subbatch[i] for i in ids for _ in range(self.workers[i])]

    def first_share(self, rank_id: int) -> int:
        """The first share of a rank at the start."""
        return sum(self.workers[i] for i in self.ids[:self.ids.index(rank_id)])

    def part(self, share: int, ids: list[int]) -> tuple[int, int]:
        """Where `share` begins within a mini-batch of one gradient of every worker, and the samples of that."""
        batches = self.batches(ids)
        return sum(batches[:share]), sum(batches)

    def living(self, groups: list[list[int]], shares: int) -> list[int]:
        """The ranks that had `shares` shares: the groups of a run only lose members."""
        return next(ids for ids in groups if len(self.batches(ids)) == shares)

    def to_json(self) -> list[dict[str, int]]:
        """A row for each rank."""
        return [{"rank": i, "workers": self.workers[i], "subbatch": self.subbatch[i]} for i in self.ids]

    @classmethod
    def from_json(cls, rows: list[dict[str, int]]) -> Layout:
        """What to_json() wrote."""
        return cls({row["rank"]: row["workers"] for row in rows}, {row["rank"]: row["subbatch"] for row in rows})
