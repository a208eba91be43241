"""A profile for people and programs: table, CSV, JSON, trace."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from ..engine import jsontext
from ..engine.tracefile import TraceFile
from .ceilings import Ceilings
from .profile import Profile, Row
from .trace import Step

TRACED_STEPS = 20  # steps of a trace file at most
SCHEMA = 1
NOTES = ("calls: in one step. ms: of all of them together, median over the observed steps; MAD: its median absolute "
         "deviation. % step: of the observed step. GFLOP/s: operations of the plain algorithm. GB/s: bytes that must "
         "move. flop/byte: the one over the other. % ceiling: of what the best copy or sgemm allows at that flop/byte; "
         "what is in the cache may pass it, and Winograd, which does fewer products.")


def table(profile: Profile) -> Table:
    """Rows of the step, then its parts."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    result.add_column("layer")
    result.add_column("pass")
    result.add_column("part")
    result.add_column("kernel")
    for name in ("calls", "ms", "MAD", "% step", "GFLOP/s", "GB/s", "flop/byte", "% ceiling"):
        result.add_column(name, justify="right")
    before = ""
    for row in profile.rows:
        place = f"{row.layer} {row.direction}"
        layer, direction = (row.layer, row.direction) if place != before else ("", "")
        before = place
        result.add_row(layer, direction, row.part, row.kernel, *_numbers(row))
    return result


def _numbers(row: Row) -> Sequence[str]:
    work = [f"{row.gflop_per_s:.1f}", f"{row.gb_per_s:.1f}", f"{row.intensity:.1f}", f"{row.ceiling:.0%}"]
    if not row.bytes_moved:
        work = [""] * 4
    return [str(row.calls), f"{row.ms.median:.3f}", f"{row.ms.mad:.3f}", f"{row.share:.1%}", *work]


def totals(profile: Profile) -> str:
    """The parts of the step, and its sum against the wall clock."""
    parts = sorted(profile.parts_ms().items(), key=lambda part: -part[1])
    shares = ", ".join(f"{name} {ms:.2f} ms ({ms / profile.step_ms:.1%})" for name, ms in parts)
    untimed = profile.untimed_ms
    return (f"parts: {shares}\n"
            f"sum of all parts {profile.step_ms:.2f} ms; the same step unobserved {untimed.median:.2f} ms "
            f"(MAD {untimed.mad:.2f}, {untimed.repeats} steps): difference {profile.difference:+.1%}")


def as_json(profile: Profile, facts: dict[str, Any], ceilings: Ceilings) -> str:
    """Machine, what was profiled, ceilings, totals and rows."""
    return jsontext.dumps({"schema": SCHEMA, **facts, "ceilings": ceilings.plain(), **profile.plain()}, indent=1) + "\n"


def as_csv(profile: Profile) -> str:
    """One line a row."""
    stream = io.StringIO()
    rows = [_flat(row) for row in profile.rows]
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _flat(row: Row) -> dict[str, Any]:
    values = asdict(row)
    spread = values.pop("ms")
    return values | {f"ms_{key}": value for key, value in spread.items()}


def write_trace(path: Path, steps: Sequence[Step]) -> None:
    """The steps one after the other: layers in one row of the picture, kernels in the other."""
    trace = TraceFile(path)
    trace.name_thread(0, 0, "layers")
    trace.name_thread(0, 1, "kernels")
    start = 0.0
    for number, step in enumerate(steps[:TRACED_STEPS]):
        trace.add(f"step {number}", "step", start, step.wall_ms, thread=0)
        for event in step.events:
            trace.add(event.call.kernel, event.call.part, start + event.begin_ms, event.ms, thread=1,
                      layer=event.layer, direction=event.direction, launch_ms=round(event.launch_ms, 4))
        for label, begin, end in _ranges(step):
            trace.add(label, "layer", start + begin, end - begin, thread=0)
        start += step.wall_ms
    trace.close()


def _ranges(step: Step) -> list[tuple[str, float, float]]:
    """(layer and pass, begin, end) of consecutive events of one range."""
    result: list[tuple[str, float, float]] = []
    for event in step.events:
        label, end = f"{event.layer} {event.direction}", event.begin_ms + event.ms
        if result and result[-1][0] == label:
            result[-1] = (label, result[-1][1], end)
        else:
            result.append((label, event.begin_ms, end))
    return result
