"""Choose nodes and sub-batch: all configurations predicted at once, the admissible ranked, why each other lost.

Source: Oyama et al. 2016, planner use case: smallest T_Epoch among those whose mini-batch is near a given one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..engine.layers import NetSpec
from .bounds import finite, whole
from .loops import solve
from .machine import Machine
from .model import memory_bytes, minibatch_mean, staleness_mean
from .outcome import ILSVRC_IMAGES, Config
from .pieces import gradient_time, pieces_of

Array = np.ndarray
GIB = 2**30
CONFIGURATIONS = 2_000_000  # of one plan
ADMISSIBLE, MEMORY, SMALL, LARGE, STALE = range(5)
REASONS = ("admissible", "memory", "mini-batch too small", "mini-batch too large", "staleness")


@dataclass(frozen=True)
class Limits:
    """What a configuration must keep to.

    batch: wanted mean mini-batch, samples, or None; tolerance: by which part of it a mini-batch may differ;
    staleness: largest mean, updates, or None; memory_bytes: of a device.
    """

    memory_bytes: float
    batch: float | None = None
    tolerance: float = 0.25
    staleness: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("memory", self.memory_bytes), ("batch", self.batch), ("max-staleness", self.staleness)):
            if value is not None:
                finite(f"plan: {name}", value, positive=True)
        finite("plan: tolerance", self.tolerance)

    @property
    def batch_range(self) -> tuple[float, float]:
        """Smallest and largest admissible mean mini-batch, samples."""
        if self.batch is None:
            return 0.0, float("inf")
        return self.batch * (1 - self.tolerance), self.batch * (1 + self.tolerance)


@dataclass(frozen=True, eq=False)
class Plan:
    """Every configuration: arrays of shape (nodes, sub-batches), float64.

    nodes (n,), subbatches (b,): whole numbers; t_gpu, t_update, t_epoch: seconds; minibatch: mean samples;
    staleness: mean updates; memory: bytes of a device; verdict: int, index into REASONS;
    front: bool, on the Pareto front of the admissible: no other has a shorter epoch with as few nodes.
    """

    network: str
    machine: str
    devices: int
    limits: Limits
    nodes: Array
    subbatches: Array
    t_gpu: Array
    t_update: Array
    t_epoch: Array
    minibatch: Array
    staleness: Array
    memory: Array
    verdict: Array
    front: Array

    def ranked(self) -> list[tuple[int, int]]:
        """Positions of the admissible configurations, shortest epoch first."""
        rows, columns = np.nonzero(self.verdict == ADMISSIBLE)
        order = np.argsort(self.t_epoch[rows, columns], kind="stable")
        return list(zip(rows[order].tolist(), columns[order].tolist(), strict=True))

    def reason(self, row: int, column: int) -> str:
        """Why this configuration is not the plan, in one line; "" for the best."""
        low, high = self.limits.batch_range
        size, age = self.minibatch[row, column], self.staleness[row, column]
        verdict = self.verdict[row, column]
        if verdict == MEMORY:
            return f"memory {self.memory[row, column] / GIB:.2f} > {self.limits.memory_bytes / GIB:.2f} GiB"
        if verdict in (SMALL, LARGE):
            return f"mini-batch {size:.1f} " + (f"< {low:.1f}" if verdict == SMALL else f"> {high:.1f}")
        if verdict == STALE:
            return f"staleness {age:.2f} > {self.limits.staleness:.2f}"
        behind = self.t_epoch[row, column] / self.shortest - 1
        return f"epoch {behind:.1%} longer" if behind > 0 else ""

    @cached_property
    def shortest(self) -> float:
        """T_Epoch of the best admissible configuration, seconds; inf if there is none."""
        return float(np.min(self.t_epoch, where=self.verdict == ADMISSIBLE, initial=np.inf))

    def plain(self) -> dict[str, Any]:
        """For JSON: one list per column, a configuration at each position; "ranked" holds positions."""
        rows, columns = (grid.ravel() for grid in np.meshgrid(
            np.arange(len(self.nodes)), np.arange(len(self.subbatches)), indexing="ij"))
        lists = {name: getattr(self, name)[rows, columns].tolist() for name in (
            "t_gpu", "t_update", "t_epoch", "minibatch", "staleness", "memory", "front")}
        cells = {"nodes": self.nodes[rows].tolist(), "subbatch": self.subbatches[columns].tolist()} | lists
        cells["reason"] = [self.reason(r, c) for r, c in zip(rows.tolist(), columns.tolist(), strict=True)]
        ranked = [row * len(self.subbatches) + column for row, column in self.ranked()]
        return {"network": self.network, "machine": self.machine, "devices": self.devices,
                "limits": vars(self.limits), "ranked": ranked, "configurations": cells}


def make_plan(spec: NetSpec, machine: Machine, nodes: Sequence[int], devices: int, subbatches: Sequence[int],
              limits: Limits, *, images: int = ILSVRC_IMAGES, ranks_per_host: int = 1) -> Plan:
    """Predict every (nodes, sub-batch) and judge it.

    Raises: UsageError for an empty range, numbers that no Config has, more than CONFIGURATIONS, or naming a constant
    that the machine lacks.
    """
    for end in (min, max):
        Config(end(nodes, default=0), devices, end(subbatches, default=0), images, ranks_per_host)
    whole("plan: nodes times subbatch", len(nodes) * len(subbatches), most=CONFIGURATIONS)
    batch, count = np.array(subbatches), np.array(nodes)
    gradient, busy = gradient_time(spec, machine, batch), machine.busy(devices, ranks_per_host)
    solution = solve(pieces_of(spec, machine, count[:, None], batch, gradient, busy), count[:, None], devices)
    minibatch = minibatch_mean(count[:, None], devices, batch, solution.t_update / solution.t_gpu)
    staleness = staleness_mean(solution, devices)
    memory = np.broadcast_to([memory_bytes(spec, machine, b) for b in batch.tolist()], minibatch.shape)
    t_epoch = images * solution.t_update / minibatch
    verdict = _verdict(limits, minibatch, staleness, memory)
    front = _front(count, t_epoch, verdict == ADMISSIBLE)
    return Plan(spec.name, machine.name, devices, limits, count, batch, solution.t_gpu, solution.t_update,
                t_epoch, minibatch, staleness, memory, verdict, front)


def _verdict(limits: Limits, minibatch: Array, staleness: Array, memory: Array) -> Array:
    low, high = limits.batch_range
    stale = staleness > (np.inf if limits.staleness is None else limits.staleness)
    return np.select([memory > limits.memory_bytes, minibatch < low, minibatch > high, stale],
                     [MEMORY, SMALL, LARGE, STALE], ADMISSIBLE)


def _front(nodes: Array, t_epoch: Array, admissible: Array) -> Array:
    """Admissible configurations that no other beats or equals in epoch with as few nodes or fewer."""
    front = np.zeros(admissible.shape, dtype=bool)
    epochs = np.where(admissible, t_epoch, np.inf)
    shortest = np.inf
    for row in np.argsort(nodes):
        column = int(np.argmin(epochs[row]))
        if epochs[row, column] < shortest:
            front[row, column], shortest = True, epochs[row, column]
    return front
