"""The machine file: every constant of the performance model, plain enough to write by hand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.errors import UsageError
from ..engine.layers import NetSpec
from ..kernels.conv import ALGORITHMS
from .fields import Fields
from .gemm_time import GemmEstimate, GemmTable

SCHEMA = 2
UNITS = "alpha: s per element, beta: s per call, residual: relative standard deviation, memory: bytes"
MACHINES = Path(__file__).with_name("machines")
LIST = re.compile(r"\[[^][{}]*\]")  # of numbers, which stand in one line of the file
PER_PIXEL = ("load_image", "deform_image")
PER_PARAMETER = ("fetch_weights", "compute_update_val", "update_gradient", "sum_gradient",
                 "update_old_weights", "add_momentum", "update_momentum", "update_weights")
CROWDED = ("gradient", "images", "copies", "update", "allreduce")  # groups of pieces that others on the host hold up
ANY = "any"  # net that has no contention of its own


@dataclass(frozen=True)
class Linear:
    """alpha * elements + beta seconds; residual: relative standard deviation of the measurements about it.

    points: (elements, seconds) in order, where a straight line does not do (a processor's caches end somewhere):
    between them the time is interpolated, beyond them it grows like the line.
    """

    alpha: float
    beta: float = 0.0
    residual: float = 0.0
    points: tuple[tuple[float, float], ...] = ()

    def time(self, elements: Any) -> Any:
        """Seconds for `elements` (a number or an array)."""
        line = self.alpha * elements + self.beta
        if not self.points:
            return line
        at, seconds = np.array(self.points).T
        near = np.clip(elements, at[0], at[-1])
        return np.interp(near, at, seconds) * line / (self.alpha * near + self.beta)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        numbers: dict[str, Any] = {"alpha": self.alpha, "beta": self.beta, "residual": self.residual}
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

    def save(self, path: Path) -> None:
        """Write the machine file (JSON)."""
        text = LIST.sub(lambda numbers: " ".join(numbers[0].split()), json.dumps(self._plain(), indent=1))
        path.write_text(text + "\n", encoding="utf-8")

    def _plain(self) -> dict[str, Any]:
        head = {"schema": SCHEMA, "name": self.name, "description": self.description, "date": self.date,
                "units": UNITS, "threads": self.threads, "device": asdict(self.device), "conv": self.conv}
        body = {"kernels": {k: v.plain() for k, v in self.kernels.items()},
                "gemm": {k: _plain_gemm(v) for k, v in self.gemm.items()},
                "steps": {k: v.plain() for k, v in self.steps.items()}, "allreduce": asdict(self.allreduce),
                "jitter": self.jitter, "contention": {net: _plain_crowd(v) for net, v in self.contention.items()}}
        return head | body | {"sources": dict(self.sources)}


def machine_names() -> list[str]:
    """Names of the machine files that come with sprint."""
    return sorted(path.stem for path in MACHINES.glob("*.json"))


def load_machine(name_or_path: str | Path) -> Machine:
    """Read a machine file, by path or by the name of one that comes with sprint.

    Raises: UsageError, one line naming the field, or listing the known names.
    """
    path = Path(name_or_path)
    if str(name_or_path) in machine_names():
        path = MACHINES / f"{name_or_path}.json"
    if not path.is_file():
        known = ", ".join(machine_names())
        raise UsageError(f"machine: expected a file or one of {known}, got {str(name_or_path)!r}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UsageError(f"machine {path.name}: expected JSON, got {error}") from None
    return read_machine(data, path.name)


def read_machine(data: Any, where: str) -> Machine:
    """A Machine from the parsed JSON of file `where`. Raises: UsageError naming the field."""
    top = Fields(data, f"machine {where}: ")
    if top.number("schema") != SCHEMA:
        raise top.unfit("schema", str(SCHEMA), data["schema"])
    top.text("units", default=UNITS)
    machine = Machine(
        name=top.text("name"), description=top.text("description"), date=top.text("date"),
        threads=top.whole("threads"), device=_device(top.inside("device")), conv=top.text("conv", ALGORITHMS),
        kernels={key: _linear(value) for key, value in top.inside("kernels").groups().items()},
        gemm={key: _gemm(value) for key, value in top.inside("gemm").groups().items()},
        steps=_steps(top.inside("steps")), allreduce=_allreduce(top.inside("allreduce")),
        jitter=top.number("jitter", 0.0),
        contention={net: _contention(counts)
                    for net, counts in top.inside("contention", optional=True).groups().items()},
        sources=top.inside("sources", optional=True).texts())
    top.nothing_else()
    return machine


def _device(fields: Fields) -> DeviceFacts:
    device = DeviceFacts(fields.text("kind", ("host", "cuda")), fields.text("name"), fields.whole("per_node"),
                         fields.whole("memory_bytes"),
                         fields.whole("workspace_bytes") if fields.data.get("workspace_bytes") else None)
    fields.used.add("workspace_bytes")
    fields.nothing_else()
    return device


def _linear(fields: Fields) -> Linear:
    points = fields.pairs("points") if "points" in fields.data else ()
    value = Linear(fields.number("alpha"), fields.number("beta", 0.0), fields.number("residual", 0.0), points)
    if points and (value.alpha + value.beta == 0 or any(a[0] >= b[0] for a, b in pairwise(points))):
        raise fields.unfit("points", "ascending elements, and alpha or beta above 0", points)
    fields.nothing_else()
    return value


def _steps(fields: Fields) -> dict[str, Linear]:
    steps = {name: _linear(fields.inside(name)) for name in PER_PIXEL + PER_PARAMETER}
    first = "take_gradient" if "take_gradient" in fields.data else "sum_gradient"
    steps["take_gradient"] = _linear(fields.inside(first))
    clear = "clear_gradient"
    steps[clear] = _linear(fields.inside(clear)) if clear in fields.data else Linear(0.0)
    fields.nothing_else()
    return steps


def _allreduce(fields: Fields) -> Allreduce:
    value = Allreduce(fields.number("alpha"), fields.number("beta"), fields.number("latency", 0.0),
                      fields.number("residual", 0.0))
    fields.nothing_else()
    return value


def net_key(spec: NetSpec) -> str:
    """The name of a net in `contention`: NET:PIXELS, as sprint calibrate --nets takes it."""
    return f"{spec.name}:{spec.in_shape[1]}"


def _contention(fields: Fields) -> dict[float, dict[str, Linear]]:
    for key in fields.data:
        if not re.fullmatch(r"\d+(\.\d+)?", key) or float(key) < 1:
            raise fields.unfit(key, "a count of busy devices as key", key)
    return {float(key): _crowded(fields.inside(key)) for key in sorted(fields.data, key=float)}


def _crowded(fields: Fields) -> dict[str, Linear]:
    found = {group: _linear(fields.inside(group)) for group in CROWDED if group in fields.data}
    fields.nothing_else()
    return found


def _gemm(fields: Fields) -> GemmTable | GemmEstimate:
    value = _table(fields) if "seconds" in fields.data else _estimate(fields)
    fields.nothing_else()
    return value


def _table(fields: Fields) -> GemmTable:
    lines = {key: fields.numbers(key) for key in ("m", "n", "k")}
    for key, line in lines.items():
        if np.any(np.diff(line) <= 0):
            raise fields.unfit(key, "ascending grid lines", line.tolist())
    shape = tuple(len(line) for line in lines.values())
    raw = fields.take("seconds", f"a list of shape {shape}")
    try:
        seconds = np.array(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise fields.unfit("seconds", f"numbers or null in lists of shape {shape}", raw) from None
    if seconds.shape != shape:
        raise fields.unfit("seconds", f"shape {shape}", seconds.shape)
    known = seconds[~np.isnan(seconds)]
    if not known.size or known.min() <= 0 or not np.isfinite(known.max()):
        raise fields.unfit("seconds", "times > 0, null where not measured", known.tolist())
    return GemmTable(lines["m"], lines["n"], lines["k"], seconds, fields.number("residual", 0.0))


def _estimate(fields: Fields) -> GemmEstimate:
    tile = fields.numbers("tile").tolist() if "tile" in fields.data else [1, 1]
    if len(tile) != 2:
        raise fields.unfit("tile", "[rows, columns]", tile)
    peak, efficiency, bandwidth = (fields.number(key, positive=True)
                                   for key in ("peak_flops", "efficiency", "bandwidth"))
    return GemmEstimate(peak, efficiency, bandwidth, fields.number("overhead", 0.0),
                        (int(tile[0]), int(tile[1])), fields.whole("units", 1), fields.number("residual", 0.0))


def _plain_gemm(gemm: GemmTable | GemmEstimate) -> dict[str, Any]:
    if isinstance(gemm, GemmEstimate):
        return asdict(gemm)
    seconds = np.where(gemm.measured, gemm.seconds, np.nan)
    lists = {key: getattr(gemm, key).tolist() for key in ("m", "n", "k")}
    return lists | {"seconds": _nulls(seconds.tolist()), "residual": gemm.residual}


def _plain_crowd(counts: Mapping[float, Mapping[str, Linear]]) -> dict[str, Any]:
    return {f"{count:g}": {group: crowd.plain() for group, crowd in groups.items()} for count, groups in counts.items()}


def _nulls(values: Any) -> Any:
    if isinstance(values, list):
        return [_nulls(value) for value in values]
    return None if math.isnan(values) else values
