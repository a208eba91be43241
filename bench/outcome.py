"""What a run of the asynchronous loops looks like, be it predicted, simulated or measured: one form for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import ILSVRC_IMAGES
from .bounds import MOST, whole

GPU_TERMS = ("lock_weights", "fetch_weights", "load_image", "deform_image", "compute_gradient",
             "compute_update_val", "lock_gradient", "update_gradient")
UPDATE_TERMS = ("lock_gradient", "sum_gradient", "update_old_weights", "add_momentum", "allreduce",
                "update_momentum", "lock_weights", "update_weights")


@dataclass(frozen=True)
class Config:
    """A run to look at. images: samples of an epoch; ranks_per_host: nodes (MPI ranks) that share a host.

    min_gradients: of each node, that an update waits for; 0 as in the paper. Raises: UsageError naming a number
    below 1 or above its MOST.
    """

    nodes: int
    devices: int
    subbatch: int
    images: int = ILSVRC_IMAGES
    ranks_per_host: int = 1
    min_gradients: int = 0

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            whole(name.replace("_", "-"), getattr(self, name), most=most)


@dataclass(frozen=True, eq=False)
class Distribution:
    """A random whole number. values: ascending (n,); probabilities: (n,) float64, sum 1."""

    values: np.ndarray
    probabilities: np.ndarray

    @property
    def mean(self) -> float:
        """Expected value."""
        return float(self.values @ self.probabilities)

    @property
    def deviation(self) -> float:
        """Standard deviation."""
        return float(np.sqrt((self.values - self.mean) ** 2 @ self.probabilities))

    def quantile(self, part: float) -> int:
        """Smallest value that at least `part` (0..1) of the mass does not exceed."""
        reached = np.searchsorted(np.cumsum(self.probabilities), part * (1 - 1e-12))
        return int(self.values[min(int(reached), len(self.values) - 1)])

    def overlap(self, other: Distribution) -> float:
        """Common mass, 1 for equal distributions and 0 where no value is in both."""
        values = np.union1d(self.values, other.values)
        mine, theirs = np.zeros(len(values)), np.zeros(len(values))
        mine[np.searchsorted(values, self.values)] = self.probabilities
        theirs[np.searchsorted(values, other.values)] = other.probabilities
        return float(np.minimum(mine, theirs).sum())

    def likely(self, least: float = 1e-9) -> Distribution:
        """The same without values whose probability is below `least`, the rest scaled to sum 1."""
        keep = self.probabilities >= least
        kept = self.probabilities[keep]
        return Distribution(self.values[keep], kept / kept.sum())

    @classmethod
    def counted(cls, values: np.ndarray, weights: np.ndarray | None = None) -> Distribution:
        """From observed whole numbers (n,), each once or as often as its weight says."""
        unique, where = np.unique(values, return_inverse=True)
        counts = np.bincount(where, weights=weights)
        return cls(unique, counts / counts.sum())

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"mean": self.mean, "deviation": self.deviation, "values": self.values.tolist(),
                "probabilities": self.probabilities.tolist()}


@dataclass(frozen=True, eq=False)
class Outcome:
    """Times in seconds of one turn of each loop, and what follows from them.

    method: "predict", "simulate" or "measure". gpu_terms, update_terms: the eight terms of each loop
    (GPU_TERMS, UPDATE_TERMS); t_gpu, t_update: their sums. barrier: the part of allreduce spent waiting for
    other nodes; wait: for gradients, part of t_update and of no term. minibatch: samples of one update; staleness:
    updates between the fetch of the weights and the update that uses the gradient, 0 for the very next.
    uncertainty: quantity -> relative standard deviation, from the calibration's residuals.
    """

    method: str
    network: str
    machine: str
    config: Config
    gpu_terms: Mapping[str, float]
    update_terms: Mapping[str, float]
    t_gpu: float
    t_update: float
    barrier: float
    minibatch: Distribution
    staleness: Distribution
    memory_bytes: int
    memory_limit: int
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    wait: float = 0.0

    @property
    def t_epoch(self) -> float:
        """Seconds of an epoch. Source: Oyama et al. 2016, eq. (10)."""
        return self.config.images * self.t_update / self.minibatch.mean

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        numbers = {name: getattr(self, name) for name in (
            "method", "network", "machine", "t_gpu", "t_update", "t_epoch", "barrier", "wait", "memory_bytes",
            "memory_limit")}
        return numbers | {"config": vars(self.config), "gpu_terms": dict(self.gpu_terms),
                          "update_terms": dict(self.update_terms), "minibatch": self.minibatch.plain(),
                          "staleness": self.staleness.plain(), "uncertainty": dict(self.uncertainty),
                          "warnings": list(self.warnings)}
