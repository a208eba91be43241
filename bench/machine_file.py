"""The machine file: JSON that is plain enough to write by hand, read field by field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import jsontext
from ..engine.errors import UsageError
from ..kernels.conv import ALGORITHMS
from .bounds import MOST, fits
from .fields import Fields
from .files import read_json
from .gemm_time import GemmEstimate, GemmTable
from .machine import CROWDED, PER_PARAMETER, PER_PIXEL, Allreduce, DeviceFacts, Linear, Machine

SCHEMA = 2
UNITS = "alpha: s per element, beta: s per call, residual: relative standard deviation, memory: bytes"
MACHINES = Path(__file__).with_name("machines")
LIST = re.compile(r"\[[^][{}]*\]")  # of numbers, which stand in one line of the file


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
        data = read_json(path)
    except ValueError as error:  # no UTF-8, no JSON, or a number of thousands of digits
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
        kernels={key: _kernel(value) for key, value in top.inside("kernels").groups().items()},
        gemm={key: _gemm(value) for key, value in top.inside("gemm").groups().items()},
        steps=_steps(top.inside("steps")), allreduce=_allreduce(top.inside("allreduce")),
        jitter=top.number("jitter", 0.0),
        contention={net: _contention(counts)
                    for net, counts in top.inside("contention", optional=True).groups().items()},
        sources=top.inside("sources", optional=True).texts())
    top.nothing_else()
    return machine


def _device(fields: Fields) -> DeviceFacts:
    device = DeviceFacts(fields.text("kind", ("host", "cuda")), fields.text("name"),
                         fields.whole("per_node", most=MOST["devices"]),
                         fields.whole("memory_bytes"),
                         fields.whole("workspace_bytes") if fields.data.get("workspace_bytes") else None)
    fields.used.add("workspace_bytes")
    fields.nothing_else()
    return device


def _kernel(fields: Fields) -> Linear:
    gamma = fields.number("gamma", 0.0)
    return replace(_linear(fields), gamma=gamma)


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


def _contention(fields: Fields) -> dict[float, dict[str, Linear]]:
    for key in fields.data:
        if not re.fullmatch(r"\d+(\.\d+)?", key) or not fits(float(key), 1):
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
    seconds = fields.grid("seconds", shape)
    if np.isnan(seconds).all():
        raise fields.unfit("seconds", "a time > 0 or more, null where not measured", fields.data["seconds"])
    return GemmTable(lines["m"], lines["n"], lines["k"], seconds, fields.number("residual", 0.0))


def _estimate(fields: Fields) -> GemmEstimate:
    tile = fields.numbers("tile").tolist() if "tile" in fields.data else [1, 1]
    if len(tile) != 2:
        raise fields.unfit("tile", "[rows, columns]", tile)
    peak, efficiency, bandwidth = (fields.number(key, positive=True)
                                   for key in ("peak_flops", "efficiency", "bandwidth"))
    return GemmEstimate(peak, efficiency, bandwidth, fields.number("overhead", 0.0),
                        (int(tile[0]), int(tile[1])), fields.whole("units", 1), fields.number("residual", 0.0))


def save_machine(machine: Machine, path: Path) -> None:
    """Write the machine file (JSON)."""
    text = LIST.sub(lambda numbers: " ".join(numbers[0].split()), jsontext.dumps(_plain(machine), indent=1))
    path.write_text(text + "\n", encoding="utf-8")


def _plain(m: Machine) -> dict[str, Any]:
    head = {"schema": SCHEMA, "name": m.name, "description": m.description, "date": m.date,
            "units": UNITS, "threads": m.threads, "device": asdict(m.device), "conv": m.conv}
    body = {"kernels": {k: v.plain() for k, v in m.kernels.items()},
            "gemm": {k: _plain_gemm(v) for k, v in m.gemm.items()},
            "steps": {k: v.plain() for k, v in m.steps.items()}, "allreduce": asdict(m.allreduce),
            "jitter": m.jitter, "contention": {net: _plain_crowd(v) for net, v in m.contention.items()}}
    return head | body | {"sources": dict(m.sources)}


def _plain_gemm(gemm: GemmTable | GemmEstimate) -> dict[str, Any]:
    if isinstance(gemm, GemmEstimate):
        return asdict(gemm)
    seconds = np.where(gemm.measured, gemm.seconds, np.nan)
    lists = {key: getattr(gemm, key).tolist() for key in ("m", "n", "k")}
    return lists | {"seconds": seconds.tolist(), "residual": gemm.residual}


def _plain_crowd(counts: Mapping[float, Mapping[str, Linear]]) -> dict[str, Any]:
    return {f"{count:g}": {group: crowd.plain() for group, crowd in groups.items()} for count, groups in counts.items()}
