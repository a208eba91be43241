"""`sprint bench peers`: whole training steps beside PyTorch's."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ...kernels.device import Device
    from .cases import Case
    from .result import CaseResult, Settings

SCHEMA = 1
README_MARK = "peers"


def peers(
    case: Annotated[list[str] | None, typer.Option(
        help="NET:PIXELS:SUBBATCH, may be repeated (default: cnn-a at 92:8, 196:8 and 396:1)")] = None,
    device: Annotated[str, typer.Option(help="host or cuda, for all contenders")] = "host",
    device_threads: Annotated[int | None, typer.Option(help="Of the host (default: all cores)", min=1)] = None,
    rounds: Annotated[int, typer.Option(help="Alternating rounds of each measurement", min=1)] = 7,
    seconds: Annotated[float, typer.Option(help="Time of one turn in a round", min=0.001)] = 1.0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write every figure as JSON")] = None,
    readme: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Write the tables between FILE's peers marks")] = None,
) -> None:
    """Compare training steps with PyTorch's: same net, weights, batch and threads; losses must agree (exit code 1)."""
    from .. import marks
    from ..commands_bench import open_named
    from ..files import check_writable, say_written
    from .compare import compare
    from .pytorch import missing
    from .result import Settings

    if reason := missing():
        raise RuntimeError(f"peers: {reason}")
    check_writable("json", json_file)
    if readme:
        marks.check_marks(readme, README_MARK)
    opened, settings = open_named(device, device_threads), Settings(rounds, seconds)
    cases, facts = _cases(case, opened), _facts(opened)
    results = [compare(each, settings, lambda text: print(text, file=sys.stderr)) for each in cases]
    _show(results)
    if json_file:
        _write_json(json_file, results, facts, settings)
    _expect_agreement(results)
    if readme:
        _write_readme(readme, results, facts, settings)
    say_written(json_file, readme)


def _cases(texts: list[str] | None, device: Device) -> list[Case]:
    """The cases; on a GPU each with TF32 off, then on."""
    from ...kernels.host import usable_cores
    from .cases import DEFAULT, Case, parse

    problems = [parse(text) for text in texts] if texts else DEFAULT
    modes, threads = (("fp32",), device.threads) if device.kind == "host" else (("fp32", "tf32"), usable_cores())
    return [Case(*problem, device.name, threads, math) for problem in problems for math in modes]


def _facts(device: Device) -> dict[str, Any]:
    """About the machine, before anything is measured."""
    from ...kernels.host import usable_cores
    from ..environment import machine

    load, cores = os.getloadavg()[0], usable_cores()
    if load > cores / 2:
        print(f"warning: expected an idle machine, got a load of {load:.1f} on {cores} cores: whoever uses the "
              f"processor better loses more", file=sys.stderr)
    return {**machine(device), "load": load}


def _show(results: Sequence[CaseResult]) -> None:
    from ...engine.screen import print_table, screen
    from . import tables

    out = screen()
    print_table(out, tables.table(results))
    print_table(out, tables.layer_table(results))
    out.print(tables.NOTE, style="dim")
    for result in results:
        for text in result.missed():
            out.print(f"missed: {result.case.title}: {text}", soft_wrap=True)


def _write_json(path: Path, results: Sequence[CaseResult], facts: dict[str, Any], settings: Settings) -> None:
    from ...engine import jsontext
    from ..files import write_text

    data = {"schema": SCHEMA, "written": datetime.now(UTC).isoformat(timespec="seconds"), "machine": facts,
            "settings": asdict(settings), "cases": [result.plain() for result in results]}
    write_text(path, jsontext.dumps(data, indent=1) + "\n")


def _expect_agreement(results: Sequence[CaseResult]) -> None:
    from .result import LOSS_LIMITS

    for each in results:
        if not each.losses_agree:
            limit = LOSS_LIMITS[each.case.math]
            raise RuntimeError(f"peers: expected losses within {limit:g} of PyTorch's, "
                               f"got {each.loss_difference:.2g} ({each.case.title})")


def _write_readme(path: Path, results: Sequence[CaseResult], facts: dict[str, Any], settings: Settings) -> None:
    from ..marks import write_between
    from . import tables

    command = " ".join(["sprint", *sys.argv[1:]])
    text = tables.markdown(results, facts, settings.rounds, command, datetime.now(UTC).date().isoformat())
    write_between(path, README_MARK, text)
