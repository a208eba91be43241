"""The command line: one thin function per sub-command. Every expected failure is one line on standard error."""

from __future__ import annotations

import inspect
import operator
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from . import __version__
from .bench import commands_bench, commands_calibrate, commands_model, commands_profile
from .engine.config import TrainConfig, flag

if TYPE_CHECKING:
    from .engine.observer import Observer

app = typer.Typer(
    name="sprint", add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]})
CommandLineError: Any = typer.BadParameter.__mro__[2]  # ClickException, wherever this typer keeps it
EXPECTED = (ValueError, RuntimeError, OSError, TypeError, MemoryError)

Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
DeviceName = Annotated[str | None, typer.Option(help="auto, host, host:I, cuda, cuda:I")]
Threads = Annotated[int | None, typer.Option(help="Of a host device (default: all cores)")]


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks (anywhere in the line)")] = False,
) -> None:
    """Train convolutional networks on kernels written once in CUDA: on GPUs, or on this machine's processor."""
    if version:
        typer.echo(f"sprint {__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def train_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give command(ctx, **options) one option for every field of TrainConfig, as its metadata describe it."""
    hints = get_type_hints(TrainConfig)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    for field in fields(TrainConfig):
        info: Any = typer.Argument(help="A net that `sprint nets` lists", metavar="NET")
        if field.default is not MISSING:
            words = flag(field.name) + (f"/--no-{flag(field.name)[2:]}" if hints[field.name] is bool else "")
            info = typer.Option(words, help=field.metadata["help"], rich_help_panel=field.metadata["panel"])
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        annotation = operator.getitem(Annotated, (hints[field.name], info))
        parameters.append(inspect.Parameter(field.name, keyword, default=default, annotation=annotation))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


@app.command()
@train_options
def train(ctx: typer.Context, **options: Any) -> None:
    """Train a net; the run folder gets configuration, metrics, curves, checkpoints and summary."""
    from .distributed.training import train
    from .engine.interrupt import exit_code

    given = {name for name in options if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    ended = train(options, given, _observer, commands_calibrate.scorer)
    if not isinstance(ended, dict):
        raise typer.Exit(exit_code(ended))


def _observer(steps: int, say: Callable[[str], None]) -> Observer:
    from .bench.observer import RunProfile

    return RunProfile(steps, say)


@app.command("eval")
def evaluate(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint, or a run folder: its latest")],
    data: Annotated[str | None, typer.Option(help="Another data set of the same classes")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of the data set")] = None,
    limit: Annotated[int | None, typer.Option(help="Use no more images")] = None,
    subbatch: Annotated[int | None, typer.Option(help="Images at a time")] = None,
    device: DeviceName = None,
    device_threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Score a checkpoint on the whole test set: mean loss, top-1, top-5."""
    from .engine import jsontext
    from .engine.evaluate import evaluate_checkpoint

    asked = {"data": data, "data_dir": data_dir, "limit": limit, "subbatch": subbatch, "device": device,
             "device_threads": device_threads}
    result = evaluate_checkpoint(checkpoint, {name: value for name, value in asked.items() if value is not None})
    if as_json:
        typer.echo(jsontext.dumps(result, indent=2))
    else:
        typer.echo("{net} on {data}, step {step}: loss {loss:.4f}  top-1 {top1:.2%}  top-5 {top5:.2%}  "
                   "({test_images} images, {device})".format(**result))


@app.command()
def export(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint, or a run folder: its latest")],
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE.onnx", help="(default: NET.onnx in the folder, or beside the file)")] = None,
) -> None:
    """Write a checkpoint as ONNX: images (pixels / 255) in, probabilities and logits out."""
    from .bench.files import check_writable
    from .engine.export import export_checkpoint

    check_writable("output", output)
    result = export_checkpoint(checkpoint, output)
    typer.echo("wrote {file}: {net}, step {step}, images {in_shape} -> {classes} probabilities, "
               "{bytes:,} bytes".format(**result))


@app.command()
def replay(run: Annotated[Path, typer.Argument(help="Folder of a run that had --deterministic")]) -> None:
    """Repeat an asynchronous run on one device in its recorded order; its weights must come out bit for bit."""
    from .distributed.replaying import replay

    for line in replay(run):
        typer.echo(line)


@app.command()
def nets(
    name: Annotated[str | None, typer.Argument(help="Show the layers of this net")] = None,
    image_size: Annotated[int | None, typer.Option(help="Pixels a side (default: the net's own)")] = None,
    width: Annotated[float, typer.Option(help="Factor on all channel counts")] = 1.0,
    classes: Annotated[int | None, typer.Option(help="Number of classes (default: the net's own)")] = None,
    subbatch: Annotated[int, typer.Option(help="Images that the bytes are for", min=1)] = 1,
    as_json: Json = False,
) -> None:
    """List the nets, or the layers of one: sizes, parameters, multiply-accumulates, bytes."""
    from .engine import listing

    listing.show(name, image_size, width, classes, subbatch, as_json)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine has of what sprint can use, and the cure for what is missing."""
    from .bench.doctor import doctor

    if not doctor(as_json):
        raise typer.Exit(1)


for command in (commands_model.predict, commands_model.plan, commands_model.simulate, commands_calibrate.calibrate,
                commands_calibrate.emulate, commands_calibrate.score, commands_profile.profile):
    app.command()(command)
app.add_typer(commands_bench.app, name="bench")


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code: 0, 1 failure, 2 usage, 130 Ctrl-C, 143 SIGTERM."""
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        code = app(arguments, prog_name="sprint", standalone_mode=False) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output, such as head, has seen enough
        _discard_output()
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except (CommandLineError, *EXPECTED) as error:
        if debug:
            raise
        code, message = _explain(error)
        print(f"sprint: {' '.join(message.split())}", file=sys.stderr)
        return code


def _explain(error: Exception) -> tuple[int, str]:
    """Exit code and message of an expected failure."""
    if isinstance(error, CommandLineError):
        return 2, _mistyped(error)
    if isinstance(error, OSError) and error.errno and not error.filename and _output_lost():
        return 1, f"standard output: {error.strerror}"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return 1, f"{error.filename}: {error.strerror}"
    return getattr(error, "exit_code", 1), str(error) or type(error).__name__


def _output_lost() -> bool:
    """Whether standard output takes no more, not even the end of a line; what it holds is then dropped."""
    try:
        print(flush=True)
    except OSError:
        _discard_output()
        return True
    return False


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _mistyped(error: Any) -> str:
    command = error.ctx.command_path if error.ctx else "sprint"
    return f"{error.format_message().rstrip('.')} (see {command} --help)"


def _open_streams() -> None:
    """Give a closed standard output or error the null device, and let a terminal without our signs show others."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (as long as the process)
        else:
            getattr(sys, name).reconfigure(errors="replace")


def main() -> None:
    """What the console script (console.py) and python -m sprint run."""
    _open_streams()
    code = run(sys.argv[1:])
    if code and "OMPI_COMM_WORLD_SIZE" in os.environ:
        from .distributed.launch import leave

        leave(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
