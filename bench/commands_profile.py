"""`sprint profile`: where the time of a training step goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..engine.errors import UsageError


def profile(
    net: Annotated[str, typer.Argument(help="A net that `sprint nets` lists", metavar="NET")],
    subbatch: Annotated[int, typer.Option(help="Images in one gradient", min=1)] = 4,
    image_size: Annotated[int | None, typer.Option(help="Pixels a side (default: the net's own)")] = None,
    width: Annotated[float, typer.Option(help="Factor on all channel counts")] = 1.0,
    classes: Annotated[int | None, typer.Option(help="Number of classes (default: the net's own)")] = None,
    device: Annotated[str, typer.Option(help="auto, host, host:I, cuda, cuda:I")] = "auto",
    device_threads: Annotated[int | None, typer.Option(help="Of a host device (default: all cores)")] = None,
    conv_algo: Annotated[str, typer.Option(help="explicit, implicit, auto")] = "auto",
    augment: Annotated[bool, typer.Option(help="Deform the images")] = False,
    steps: Annotated[int, typer.Option(help="Observed steps; as many unobserved ones go between them")] = 10,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the table as CSV")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a Chrome trace for Perfetto")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw bars a layer and a roofline")] = None,
) -> None:
    """Show the time of each layer, pass and kernel of a training step, against this machine's ceilings."""
    from ..engine.config import TrainConfig
    from ..engine.nets import build
    from ..engine.screen import print_table, screen
    from ..engine.session import plan_memory
    from . import profile_plots, profile_tables
    from .ceilings import measure_ceilings
    from .commands_bench import open_named
    from .environment import machine, warn_if_busy
    from .files import check_picture, check_writable, naming, say_written, write_text
    from .kernel_tables import ceilings_line
    from .profile import observe
    from .profile import profile as evaluate
    from .profiler import open_step
    from .trace import TracedDevice

    if steps < 1:
        raise UsageError(f"steps: expected at least 1, got {steps}")
    for option, path in (("json", json_file), ("csv", csv_file), ("trace", trace)):
        check_writable(option, path)
    check_picture("plot", plot)
    config = TrainConfig(net, data="synthetic", classes=classes, image_size=image_size, width=width, subbatch=subbatch,
                         device=device, device_threads=device_threads, conv_algo=conv_algo)
    spec = build(net, image_size, width, classes)
    opened = open_named(device, device_threads)
    facts = machine(opened)
    plan_memory(config, spec, opened, opened.memory().available)
    warn_if_busy(facts)
    out = screen()
    out.print(f"device  {opened.describe()}", soft_wrap=True)
    ceilings = measure_ceilings(opened)
    out.print(ceilings_line(ceilings), soft_wrap=True)
    traced = TracedDevice(opened)
    step = open_step(traced, spec, subbatch, conv_algo=conv_algo, augment=augment)
    with step.loader:
        observed, untimed = observe(traced, step, steps)
    result = evaluate(observed, untimed, ceilings)
    print_table(out, profile_tables.table(result))
    out.print(profile_tables.totals(result), soft_wrap=True)
    out.print(profile_tables.NOTES, style="dim")
    if json_file:
        what = {"machine": facts, "net": net, "image_size": spec.in_shape[1], "width": width, "subbatch": subbatch,
                "conv_algo": conv_algo}
        write_text(json_file, profile_tables.as_json(result, what, ceilings))
    if csv_file:
        write_text(csv_file, profile_tables.as_csv(result))
    if trace:
        with naming(trace):
            profile_tables.write_trace(trace, observed)
    if plot:
        title = f"{net} {spec.in_shape[1]} px, sub-batch {subbatch}, {opened.describe()}"
        profile_plots.draw(plot, result, ceilings, title)
    say_written(json_file, csv_file, trace, plot)
