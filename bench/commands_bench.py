"""The sub-commands of `sprint bench`: kernels (the default), and the comparison of two results."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..engine.errors import UsageError
from ..kernels import limits
from .peers.command import peers

if TYPE_CHECKING:
    from ..kernels.device import Device
    from .kernels import Bench, Result
    from .op import Case

SCHEMA = 1
MOST_REPEATS = 1_000_000  # whose times are kept, each
README_MARK = "bench"


class DefaultGroup(TyperGroup):
    """`sprint bench im2col` is `sprint bench run im2col`: only a first word that is a command is taken as one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command in front of anything else."""
        return super().parse_args(ctx, args if args and args[0] in self.commands else ["run", *args])


class DefaultCommand(TyperCommand):
    """The command that needs no name: the kernels come first."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """One line, as it is typed."""
        formatter.write_usage(ctx.parent.command_path, "[KERNEL]... [OPTIONS]")


app = typer.Typer(cls=DefaultGroup, add_completion=False, rich_markup_mode="rich",
                  context_settings={"help_option_names": ["-h", "--help"]},
                  help="Check and time single kernels; `bench compare A.json B.json` compares two results, "
                       "`bench peers` whole steps with PyTorch's.")
app.command("peers")(peers)


@app.command("run", cls=DefaultCommand)
def run(
    names: Annotated[list[str] | None, typer.Argument(
        metavar="KERNEL", help="Kernels or families: im2col pool softmax")] = None,
    net: Annotated[str | None, typer.Option(help="Every kernel call of this net")] = None,
    subbatch: Annotated[int, typer.Option(help="Images of --net", min=1, max=2**31 - 1)] = 4,
    image_size: Annotated[int | None, typer.Option(help="Pixels a side of --net")] = None,
    width: Annotated[float, typer.Option(help="Factor on the channels of --net")] = 1.0,
    sizes: Annotated[str | None, typer.Option("--set", help="Public layer sizes: convnet, deepbench")] = None,
    problem: Annotated[list[str] | None, typer.Option(
        help="One problem, for example 'conv n8c64h56w56k128r3s3'; may be repeated")] = None,
    block: Annotated[str | None, typer.Option(help="Threads a block to sweep (cuda): 64,128,256")] = None,
    device: Annotated[str, typer.Option(help="auto, host, host:I, cuda, cuda:I")] = "auto",
    device_threads: Annotated[int | None, typer.Option(help="Of a host device (default: all cores)")] = None,
    seconds: Annotated[float, typer.Option(help="Time for each case")] = 0.3,
    repeats: Annotated[int | None, typer.Option(
        help="Calls of each case (default: what --seconds allows, 5 to 200)")] = None,
    json_file: Annotated[Path | None, typer.Option(
        "--json", metavar="FILE", help="Write machine and cases; - prints them")] = None,
    readme: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Write the table between FILE's bench marks")] = None,
    check_only: Annotated[bool, typer.Option("--check-only", help="Check against float64, time nothing")] = False,
) -> None:
    """Check kernels against float64, then time them beside BLAS or a copy.

    Others: [bold]sprint bench compare[/] compares two results, [bold]sprint bench peers[/] steps with PyTorch's.
    """
    from . import marks
    from .files import check_writable
    from .kernels import Bench, Settings, unfit

    if not 0 < seconds < math.inf or (repeats is not None and not 1 <= repeats <= MOST_REPEATS):
        got = f"{repeats} repeats" if 0 < seconds < math.inf else f"{seconds:g} seconds"
        raise UsageError(f"bench: expected seconds above 0 (finite) and 1 to {MOST_REPEATS:,} repeats, got {got}")
    if readme and check_only:
        raise UsageError("readme: expected times to write, got --check-only")
    check_writable("json", json_file)
    if readme:
        marks.check_marks(readme, README_MARK)
    opened = open_named(device, device_threads)
    blocks = _blocks(block, opened)
    cases = _cases(names or [], net, image_size, width, subbatch, sizes, problem or [], opened)
    reasons = [unfit(opened, case) for case in cases]
    if None not in reasons:
        raise UsageError(f"bench: expected a case that can run here, got {len(cases)} that cannot: {reasons[0]}")
    results = _measure(Bench(opened, Settings(seconds, repeats, blocks, check_only)), cases, str(json_file) == "-",
                       json_file, readme)
    if any(result.status in ("wrong", "refused") for result in results):
        raise typer.Exit(1)


@app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(help="Results before", metavar="A.json")],
    b: Annotated[Path, typer.Argument(help="Results after", metavar="B.json")],
    threshold: Annotated[float, typer.Option(help="Change of the median that matters, percent", min=0)] = 5.0,
    force: Annotated[bool, typer.Option("--force", help="Compare other machines and thread counts too")] = False,
) -> None:
    """Compare two results case by case; exit code 1 when a case has become slower, beyond the threshold and chance."""
    from ..engine.screen import screen
    from .compare import compare_files
    from .compare_tables import print_compared

    compared, unpaired = compare_files(a, b, threshold=threshold / 100, force=force)
    print_compared(screen(), compared, unpaired)
    if any(each.verdict == "slower" for each in compared):
        raise typer.Exit(1)


def open_named(name: str, threads: int | None) -> Device:
    """The device that an option names. Raises UsageError for a name or number that means none."""
    from ..kernels.device import open_device

    if threads is not None and not 1 <= threads <= limits.THREADS:
        raise UsageError(f"device-threads: expected 1 to {limits.THREADS}, got {threads}")
    try:
        return open_device(name, threads=threads)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _blocks(text: str | None, device: Device) -> tuple[int | None, ...]:
    """Block sizes of "64,128,256"; the device's own without a text."""
    if text is None:
        return (None,)
    if device.kind == "host":
        raise UsageError(f"block: expected a cuda device, got {device.name}, which has no blocks of threads")
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or any(size % 32 or not 32 <= size <= 1024 for size in sizes):
        raise UsageError(f"block: expected multiples of 32 from 32 to 1024 like 64,128,256, got '{text}'")
    return sizes


def _cases(names: list[str], net: str | None, image_size: int | None, width: float, subbatch: int, sizes: str | None,
           problems: list[str], device: Device) -> list[Case]:
    """Cases of problem strings, of a net and of a set (the kernels named, if any are), or else the table's own."""
    from .selection import cases_of, default_cases, named

    wanted = {op.name for name in names for op in named(name)}
    cases = [case for text in problems for case in cases_of(text)]
    if net is not None:
        from ..engine.nets import build
        from .net_calls import net_cases
        cases += net_cases(build(net, image_size, width), device, subbatch)
    if sizes is not None:
        from .sets import set_cases
        cases += set_cases(sizes)
    if net is None and sizes is None:
        return cases + (default_cases(names) if names or not problems else [])
    cases = [case for case in cases if not wanted or case.op.name in wanted]
    if not cases:
        raise UsageError(f"bench: expected kernels that occur there, got {' '.join(names)}")
    return cases


def _measure(bench: Bench, cases: Sequence[Case], quiet: bool, json_file: Path | None,
             readme: Path | None) -> list[Result]:
    from rich.console import Console
    from rich.progress import Progress

    from ..engine import jsontext
    from ..engine.screen import screen
    from .environment import machine, warn_if_busy
    from .files import say_written, write_text
    from .kernel_tables import ceilings_line, markdown, print_results
    from .marks import write_between

    out, first_ceilings, facts = screen(), bench.ceilings, machine(bench.device)
    warn_if_busy(facts)
    if not quiet:
        out.print(bench.device.describe())
        if bench.ceilings:
            out.print(ceilings_line(bench.ceilings), soft_wrap=True)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=len(cases) * len(bench.settings.blocks))
        results = bench.run(cases, lambda r: progress.update(task, advance=1, description=str(r.case.problem)))
    if not quiet:
        print_results(out, results)
        if bench.ceilings and bench.ceilings != first_ceilings:
            out.print(f"the machine was busy: {ceilings_line(bench.ceilings)}", soft_wrap=True)
    if json_file:
        text = jsontext.dumps(_plain(bench, results, facts), indent=1) + "\n"
        sys.stdout.write(text) if quiet else write_text(json_file, text)
    if readme and bench.ceilings:
        command = " ".join(["sprint", *sys.argv[1:]])
        write_between(readme, README_MARK, markdown(results, facts, bench.ceilings, command))
    say_written(json_file, readme)
    return results


def _plain(bench: Bench, results: Sequence[Result], machine: dict[str, Any]) -> dict[str, Any]:
    settings = bench.settings
    return {"schema": SCHEMA, "written": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine,
            "ceilings": bench.ceilings.plain() if bench.ceilings else None,
            "settings": {"seconds": settings.seconds, "repeats": settings.repeats, "caches": "cold"},
            "cases": [result.plain() for result in results]}
