"""The sub-commands calibrate, emulate and score: what ties the model to machines and runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..engine.errors import UsageError
from . import ILSVRC_IMAGES
from .bounds import whole
from .commands_model import (
    Classes,
    Devices,
    Images,
    ImageSize,
    JsonFile,
    MachineOption,
    Net,
    PlotFile,
    Width,
    check_outputs,
    deliver_outcomes,
    inputs,
    whole_range,
)

if TYPE_CHECKING:
    from ..distributed.ranks import Comm
    from .calibrate import Calibration

NETS = "cnn-a,cnn-b,cnn-c"
SUBBATCHES, QUICK_SUBBATCHES = "1,2,4,8", "1,4"


def calibrate(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Machine file to write.")],
    nets: Annotated[str, typer.Option(
        metavar="NET[:PIXELS],...", help="What the file shall be good for.")] = NETS,
    subbatch: Annotated[str | None, typer.Option(
        metavar="RANGE", help=f"Samples of one gradient, like 1,2,4..8 (default: {SUBBATCHES}).")] = None,
    image_size: ImageSize = None, width: Width = 1.0, classes: Classes = None,
    device: Annotated[str, typer.Option(help="auto, host, host:I, cuda, cuda:I")] = "auto",
    device_threads: Annotated[int | None, typer.Option(help="Of a host device (default: all cores).")] = None,
    conv_algo: Annotated[str, typer.Option(help="explicit, implicit, winograd, auto")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help=f"A minute or two; sub-batches {QUICK_SUBBATCHES}.")] = False,
    name: Annotated[str | None, typer.Option(help="Of the machine (default: the file's).")] = None,
    description: Annotated[str | None, typer.Option(help="Of the machine (default: its processor).")] = None,
) -> None:
    """Measure this machine for the model; under mpirun (with --bind-to none) the Allreduce between the ranks too."""
    from .commands_bench import open_named

    def prepared() -> tuple[Any, Any]:
        from ..engine.nets import build
        from ..kernels.conv import ALGORITHMS
        from .calibrate import FULL, QUICK, Wanted
        from .files import check_writable

        if conv_algo not in ALGORITHMS:
            raise UsageError(f"conv-algo: expected one of {', '.join(ALGORITHMS)}, got {conv_algo!r}")
        sized = [net.strip().partition(":") for net in nets.split(",")]
        specs = [build(net, _pixels(size) if size else image_size, width, classes) for net, _, size in sized]
        batches = whole_range("subbatch", subbatch or (QUICK_SUBBATCHES if quick else SUBBATCHES))
        check_writable("output", output)
        return open_named(device, device_threads), Wanted(specs, batches, conv_algo, QUICK if quick else FULL)

    with _job() as comm:
        from ..distributed.together import together
        from . import others
        from .calibrate import calibrate as measure

        opened, wanted = together(comm, prepared)
        watch = others.Watch()
        with _progress(comm) as report:
            made = measure(opened, wanted, comm, name or output.stem, description or "", report)
        share = watch.share(comm)
    if made:
        from .files import say_written
        from .machine_file import save_machine

        save_machine(made.machine, output)
        _print_checks(made)
        say_written(output)
        others.warn(share)


def _pixels(text: str) -> int:
    if not text.isdigit():
        raise UsageError(f"nets: expected NET or NET:PIXELS, got {text!r} as pixels")
    return int(text)


def emulate(
    net: Net, machine: MachineOption, subbatch: Annotated[int, typer.Option(help="Samples of one gradient.")],
    devices: Devices = None,
    nodes: Annotated[int | None, typer.Option(help="Must be the ranks that mpirun has started.")] = None,
    updates: Annotated[int, typer.Option(help="Updates to make after the warm-up.")] = 100,
    parameters: Annotated[int, typer.Option(
        help="float32 values of the buffers that are really copied, summed and reduced.", min=1)] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 0,
    images: Images = ILSVRC_IMAGES, image_size: ImageSize = None, width: Width = 1.0, classes: Classes = None,
    json_file: JsonFile = None, plot: PlotFile = None,
) -> None:
    """Run the real threads, locks and MPI code at a machine's pace: mpirun -n NODES sprint emulate ..."""
    with _job() as comm:
        from ..distributed.together import together
        from .emulate import emulate as run
        from .outcome import Config

        def prepared() -> tuple[Any, Any, Config]:
            if nodes not in (None, comm.size):
                raise UsageError(f"nodes: expected {comm.size}, the ranks that are here, got {nodes} "
                                 f"(mpirun -n {nodes} sprint emulate ...)")
            check_outputs(json_file, plot)
            whole("seed", seed, 0)
            spec, facts = inputs(net, machine, image_size, width, classes)
            each = facts.device.per_node if devices is None else devices
            return spec, facts, Config(comm.size, each, subbatch, images)

        spec, facts, config = together(comm, prepared)
        with _progress(comm) as report:
            emulated = run(comm, spec, facts, config, parameters=parameters, updates=updates, seed=seed, report=report)
        first = comm.rank == 0
    if first:
        from . import model
        from .simulate import Weather, simulate

        others = [model.predict(spec, facts, config),
                  simulate(spec, facts, config, Weather(facts.jitter), updates=updates, seed=seed)]
        deliver_outcomes([*others, emulated], facts, json_file, plot)


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run with --algorithm sprint.")],
    machine: MachineOption,
    json_file: JsonFile = None, plot: PlotFile = None,
) -> None:
    """Score the prediction against a finished run: terms, times, mini-batch and staleness, each with its error."""
    from .machine_file import load_machine

    check_outputs(json_file, plot)
    print_score(run, load_machine(machine), json_file, plot)


def scorer(machine: str) -> Callable[[Path], None]:
    """Who scores the prediction of a machine, by file or name, against a run folder. Raises: UsageError."""
    from .machine_file import load_machine

    facts = load_machine(machine)
    return lambda run: print_score(run, facts)


def print_score(run: Path, machine: Any, json_file: Path | None = None, plot: Path | None = None) -> None:
    """Show how a prediction for `machine` fits a finished run."""
    from . import score as scoring

    predicted, seen = scoring.score(scoring.read_run(run), machine)
    deliver_outcomes([predicted, seen], machine, json_file, plot, lambda: scoring.plain(predicted, seen))


@contextmanager
def _job() -> Iterator[Comm]:
    """The ranks that the launcher started; an error of one is the end of all."""
    from ..distributed.comm import open_comm
    from ..distributed.launch import guard

    with guard():
        comm = open_comm()
    with guard(comm):
        yield comm
        comm.ended = True
    comm.close()


@contextmanager
def _progress(comm: Comm) -> Iterator[Callable[[str, float], None]]:
    """A bar on the terminal of rank 0: report(what goes on, share that is done)."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True,
                  disable=comm.rank > 0 or not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda text, done: progress.update(task, completed=done, description=text)


def _print_checks(made: Calibration) -> None:
    import numpy as np

    from .machine import ANY
    from .model_tables import open_screen

    console, machine = open_screen(), made.machine
    console.print(f"[bold]{machine.name}[/]: {machine.description}", soft_wrap=True)
    what = {"kernels": "kernels between the sizes fitted to", "gemm": "products and convolutions off the grid",
            "gradient": "whole gradients"}
    for group, off in made.checks.items():
        if off:
            sizes = np.abs(off)
            console.print(f"{what[group]}: error {np.median(sizes):.1%} in the median, {np.mean(sizes):.1%} on average "
                          f"({len(off)} checks)", soft_wrap=True)
    found = {count: groups["gradient"] for count, groups in sorted(machine.contention[ANY].items())}
    crowding = ", ".join(f"{count:g}: x {crowd.alpha:.2f} + {1e6 * crowd.beta:.0f} us a launch"
                         for count, crowd in found.items())
    console.print(f"a gradient against its kernels, by busy devices {crowding}; "
                  f"its time varies by {machine.jitter:.1%}", soft_wrap=True)
