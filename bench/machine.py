"""A machine as the performance model sees it: every constant, and the times that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..engine.errors import UsageError
from ..engine.layers import NetSpec
from .gemm_time import GemmEstimate, GemmTable

PER_PIXEL = ("load_image", "deform_image")
PER_PARAMETER = ("fetch_weights", "compute_update_val", "update_gradient", "sum_gradient",
                 "update_old_weights", "add_momentum", "update_momentum", "update_weights")
CROWDED = ("gradient", "images", "copies", "update", "allreduce")  # groups of pieces that others on the host hold up
ANY = "any"  # net that has no contention of its own


@dataclass(frozen=True)
class Linear:
    """alpha * elements + gamma * rows + beta seconds; residual: relative standard deviation of the measurements.

    points: (elements, seconds) in order, where a straight line does not do (a processor's caches end somewhere):
    between them the time is interpolated, beyond them it grows like the line.
    """

    alpha: float
    beta: float = 0.0
    residual: float = 0.0
    points: tuple[tuple[float, float], ...] = ()
    gamma: float = 0.0

    def time(self, elements: Any, rows: float = 1.0) -> Any:
        """Seconds for `elements` (a number or an array) in so many rows."""
        line = self.alpha * elements + self.gamma * rows + self.beta
        if not self.points:
            return line
        at, seconds = np.array(self.points).T
        near = np.clip(elements, at[0], at[-1])
        return np.interp(near, at, seconds) * line / (self.alpha * near + self.beta)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        numbers: dict[str, Any] = {"alpha": self.alpha, "beta": self.beta, "residual": self.residual}
        numbers |= {"gamma": self.gamma} if self.gamma else {}
        return numbers | ({"points": [list(point) for point in self.points]} if self.points else {})


@dataclass(frozen=True)
class Allreduce:
    """(alpha log2(nodes) + beta) * parameters + latency log2(nodes) seconds, all nodes having arrived.

    Source: Oyama et al. 2016, table of terms; latency (s per doubling of the nodes) is ours, for small nets.
    """

    alpha: float
    beta: float
    latency: float = 0.0
    residual: float = 0.0

    def time(self, nodes: Any, parameters: int) -> Any:
        """Seconds for `nodes` (a number or an array) that each hold `parameters` float32 values."""
        doublings = np.log2(nodes)
        return (self.alpha * doublings + self.beta) * parameters + self.latency * doublings


@dataclass(frozen=True)
class DeviceFacts:
    """kind: "host" or "cuda"; name: its maker's; per_node: how many a node has; memory_bytes: of each.

    workspace_bytes: limit of the columns of an explicit convolution, None for the engine's default.
    """

    kind: str
    name: str
    per_node: int
    memory_bytes: int
    workspace_bytes: int | None = None


@dataclass(frozen=True, eq=False)
class Machine:
    """A machine as the model sees it.

    kernels: by kernel name; gemm: by path, e.g. "sgemm.nt", falling back to the part before the dot.
    steps: the pieces of the two loops, per pixel value (PER_PIXEL) or per parameter (PER_PARAMETER);
        take_gradient, the first GradBuf of a sum, may be missing and then costs what sum_gradient does;
        clear_gradient, a sum of none, may be missing and then costs nothing.
    conv: the convolution that runs, as the engine names it ("auto": the fastest); threads: host threads of one device.
    jitter: relative standard deviation of the time of a gradient from one iteration to the next.
    contention: net as net_key names it, or ANY -> busy devices on one host -> group of pieces (CROWDED) -> what these
        devices make of the group's seconds alone: alpha times as many, and beta more for each call. Devices that are
        the host's own cores share them with the update threads: these count as busy then. Elsewhere only the gradient
        is held up.
    sources: where each value comes from, by dotted field.
    """

    name: str
    description: str
    date: str
    threads: int
    device: DeviceFacts
    conv: str
    kernels: Mapping[str, Linear]
    gemm: Mapping[str, GemmTable | GemmEstimate]
    steps: Mapping[str, Linear]
    allreduce: Allreduce
    jitter: float = 0.0
    contention: Mapping[str, Mapping[float, Mapping[str, Linear]]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def kernel(self, name: str) -> Linear:
        """Constants of a kernel. Raises UsageError naming the field where the file lacks it."""
        if name not in self.kernels:
            raise UsageError(f"machine {self.name}: kernels.{name}: expected alpha and beta, got nothing")
        return self.kernels[name]

    def gemm_path(self, path: str) -> str:
        """The entry of `gemm` that serves a path: the library's sgemm stands in for the host's own tiles.

        Raises UsageError naming the field where there is none.
        """
        library = path.replace("tiles", "sgemm")
        for name in (path, path.split(".")[0], library, library.split(".")[0]):
            if name in self.gemm:
                return name
        raise UsageError(f"machine {self.name}: gemm.{path}: expected a grid or an estimate, got nothing")

    def busy(self, devices: int, ranks_per_host: int) -> float:
        """Busy devices of a host with so many ranks; a thread that updates counts where it takes a core from them."""
        return ranks_per_host * (devices + (1 / self.threads if self.device.kind == "host" else 0))

    def crowding(self, net: str, group: str, busy: float) -> Linear:
        """What `busy` devices on one host make of a group of pieces: alpha times their seconds, beta more a call.

        Linear between the counts measured with this net, or with all; beyond the last in proportion to `busy`: the
        processor is full.
        """
        counts_of = self.contention.get(net) or self.contention.get(ANY, {})
        found = {count: groups[group] for count, groups in counts_of.items() if group in groups}
        if not found or (group != "gradient" and self.device.kind != "host"):
            return Linear(1.0)
        counts = sorted(found)
        alpha, beta, residual = (float(np.interp(busy, counts, [getattr(found[count], name) for count in counts]))
                                 for name in ("alpha", "beta", "residual"))
        beyond = max(1.0, busy / counts[-1])
        return Linear(beyond * alpha, beyond * beta, residual)


def net_key(spec: NetSpec) -> str:
    """The name of a net in `contention`: NET:PIXELS, as sprint calibrate --nets takes it."""
    return f"{spec.name}:{spec.in_shape[1]}"
