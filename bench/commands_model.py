"""The sub-commands predict, plan and simulate."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..engine.errors import UsageError
from . import ILSVRC_IMAGES
from .bounds import MOST, finite, positives, short, whole

PICTURES = (".png", ".pdf", ".svg")
Net = Annotated[str, typer.Argument(metavar="NET", help="A net that `sprint nets` lists.")]
MachineOption = Annotated[str, typer.Option("--machine", help="Machine file, or the name of one that comes along.")]
Images = Annotated[int, typer.Option(help="Samples of an epoch.")]
Devices = Annotated[int | None, typer.Option(help="Devices a node; default: those of the machine.")]
RanksPerHost = Annotated[int, typer.Option(help="Nodes (MPI ranks) that share one host.")]
ImageSize = Annotated[int | None, typer.Option(help="Pixels along an image, if not the network's own.")]
Width = Annotated[float, typer.Option(help="Factor on the network's channel counts.")]
Classes = Annotated[int | None, typer.Option(help="Classes, if not the network's own.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all as JSON; - prints it.")]
PlotFile = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it (png, pdf, svg).")]


def predict(net: Net, machine: MachineOption, nodes: Annotated[int, typer.Option(help="Nodes.")],
            subbatch: Annotated[int, typer.Option(help="Samples of one gradient.")], devices: Devices = None,
            images: Images = ILSVRC_IMAGES, ranks_per_host: RanksPerHost = 1, image_size: ImageSize = None,
            width: Width = 1.0, classes: Classes = None, json_file: JsonFile = None,
            plot: PlotFile = None) -> None:
    """Predict epoch time, mini-batch, staleness and memory of asynchronous training."""
    from . import model
    from .outcome import Config

    check_outputs(json_file, plot)
    spec, facts = inputs(net, machine, image_size, width, classes)
    config = Config(nodes, facts.device.per_node if devices is None else devices, subbatch, images,
                    ranks_per_host)
    deliver_outcomes([model.predict(spec, facts, config)], facts, json_file, plot)


def simulate(net: Net, machine: MachineOption, nodes: Annotated[int, typer.Option(help="Nodes.")],
             subbatch: Annotated[int, typer.Option(help="Samples of one gradient.")], devices: Devices = None,
             updates: Annotated[int, typer.Option(help="Updates to play after the warm-up.")] = 200,
             jitter: Annotated[float | None, typer.Option(
                 help="Relative standard deviation of a gradient's time; default: the machine's.")] = None,
             times: Annotated[Path | None, typer.Option(
                 metavar="FILE", help="JSON list of measured seconds of ComputeGradient to draw from.")] = None,
             slow: Annotated[list[str] | None, typer.Option(
                 metavar="NODE:FACTOR", help="A node whose gradients take FACTOR times longer.")] = None,
             kill: Annotated[list[str] | None, typer.Option(
                 metavar="NODE:SECOND", help="A node that dies at that second.")] = None,
             detect: Annotated[float, typer.Option(help="Seconds until a death is noticed.")] = 1.0,
             seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 0,
             images: Images = ILSVRC_IMAGES, ranks_per_host: RanksPerHost = 1, image_size: ImageSize = None,
             width: Width = 1.0, classes: Classes = None, json_file: JsonFile = None,
             plot: PlotFile = None) -> None:
    """Play the threads, locks and meetings of a cluster event by event, beside what the formulas predict."""
    from . import model
    from .outcome import Config
    from .simulate import Weather
    from .simulate import simulate as play

    check_outputs(json_file, plot)
    spec, facts = inputs(net, machine, image_size, width, classes)
    config = Config(nodes, facts.device.per_node if devices is None else devices, subbatch, images,
                    ranks_per_host)
    weather = Weather(facts.jitter if jitter is None else jitter, _times(times), _pairs("slow", slow or []),
                      _pairs("kill", kill or []), detect)
    played = play(spec, facts, config, weather, updates=updates, seed=seed)
    deliver_outcomes([model.predict(spec, facts, config), played], facts, json_file, plot)


def plan(net: Net, machine: MachineOption,
         nodes: Annotated[str, typer.Option(metavar="RANGE", help="1..64, 1..64:4 or 1,2,4.")],
         subbatch: Annotated[str, typer.Option(metavar="RANGE", help="Samples of one gradient, like nodes.")],
         devices: Devices = None,
         batch: Annotated[float | None, typer.Option(help="Wanted mean mini-batch, samples.")] = None,
         tolerance: Annotated[str, typer.Option(help="How far the mini-batch may be off: 25% or 0.25.")] = "25%",
         max_staleness: Annotated[float | None, typer.Option(help="Largest mean staleness, updates.")] = None,
         memory: Annotated[float | None, typer.Option(help="GiB of a device; default: the machine's.")] = None,
         show: Annotated[int, typer.Option(help="How many admissible configurations to print.")] = 10,
         every: Annotated[bool, typer.Option("--all", help="Print all configurations and why they lost.")] = False,
         images: Images = ILSVRC_IMAGES, ranks_per_host: RanksPerHost = 1, image_size: ImageSize = None,
         width: Width = 1.0, classes: Classes = None, json_file: JsonFile = None, plot: PlotFile = None) -> None:
    """Choose nodes and sub-batch: the shortest epoch whose mini-batch, staleness and memory are admissible."""
    from .files import say_written
    from .plan import GIB, Limits, make_plan

    check_outputs(json_file, plot)
    whole("show", show, 0)
    spec, facts = inputs(net, machine, image_size, width, classes)
    room = facts.device.memory_bytes if memory is None else finite("memory", memory, positive=True) * GIB
    limits = Limits(room, batch, _part("tolerance", tolerance), max_staleness)
    made = make_plan(spec, facts, whole_range("nodes", nodes),
                     facts.device.per_node if devices is None else devices, whole_range("subbatch", subbatch),
                     limits, images=images, ranks_per_host=ranks_per_host)
    if plot:
        from .model_plots import plot_plan
        plot_plan(made, plot)
    if deliver_json(made.plain, json_file):
        from .model_tables import open_screen, print_plan
        print_plan(open_screen(), made, show, every)
    say_written(json_file, plot)


def check_outputs(json_file: Path | None, plot: Path | None) -> None:
    """Raise UsageError, before anything is worked out, for a file that cannot be written or drawn."""
    from .files import check_writable

    check_writable("json", json_file)
    if plot and plot.suffix not in PICTURES:
        raise UsageError(f"plot: expected a file named {', '.join(PICTURES)}, got {plot}")
    check_writable("plot", plot)


def whole_range(name: str, text: str) -> list[int]:
    """Whole numbers up to MOST[name] from "1..64", "1..64:4", "8" or "1,2,4..8". Raises: UsageError."""
    try:
        pieces = [_piece(piece) for piece in text.split(",")]
    except ValueError:
        raise UsageError(f"{name}: expected a range like 1..64, 1..64:4 or 1,2,4, got {short(text)}") from None
    for number in (end for piece in pieces for end in (piece[0], piece[-1])):
        whole(name, number, most=MOST[name])
    return sorted(set().union(*pieces))


def _piece(text: str) -> range:
    span, _, step = text.partition(":")
    first, _, last = span.partition("..")
    numbers = range(int(first), int(last or first) + 1, int(step or 1))
    if not numbers:
        raise ValueError
    return numbers


def _part(name: str, text: str) -> float:
    """0.25 from "25%" or "0.25"."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"{name}: expected a part like 25% or 0.25, got {short(text)}") from None


def _pairs(name: str, texts: list[str]) -> dict[int, float]:
    """{3: 2.0} from "3:2"."""
    pairs: dict[int, float] = {}
    for text in texts:
        node, _, value = text.partition(":")
        try:
            pairs[int(node)] = float(value)
        except ValueError:
            raise UsageError(f"{name}: expected NODE:NUMBER, got {short(text)}") from None
    return pairs


def _times(path: Path | None) -> list[float]:
    from .files import read_json

    if path is None:
        return []
    try:
        values = read_json(path)
    except ValueError as error:
        raise UsageError(f"times: expected a JSON list of seconds in {path}, got {error}") from None
    return positives("times", values)


def inputs(net: str, machine: str, image_size: int | None, width: float, classes: int | None) -> tuple[Any, Any]:
    from ..engine.nets import build
    from .machine_file import load_machine

    return build(net, image_size=image_size, width=width, classes=classes), load_machine(machine)


def deliver_outcomes(outcomes: list[Any], machine: Any, json_file: Path | None, plot: Path | None,
                     plain: Callable[[], dict[str, Any]] | None = None) -> None:
    """Show outcomes side by side and write what is wanted of them; plain: other JSON than that of each by its name."""
    from .files import say_written

    if plot:
        from .model_plots import plot_outcomes
        plot_outcomes(outcomes, plot)
    if deliver_json(plain or (lambda: {outcome.method: outcome.plain() for outcome in outcomes}), json_file):
        from .model_tables import open_screen, print_outcomes
        print_outcomes(open_screen(), outcomes, machine)
    say_written(json_file, plot)


def deliver_json(plain: Callable[[], dict[str, Any]], path: Path | None) -> bool:
    """Write the JSON if it is wanted; whether people still want their table (not when - put JSON on the screen)."""
    from ..engine import jsontext
    from .files import write_text

    if path is None:
        return True
    text = jsontext.dumps(plain(), indent=1)
    if str(path) == "-":
        sys.stdout.write(text + "\n")
        return False
    write_text(path, text + "\n")
    return True
