"""Going on from a checkpoint: which one, with which options, in which folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, find, load, newest_good, put_aside
from .config import TrainConfig, flag
from .errors import UsageError
from .runs import CHECKPOINTS, RunFolder

Say = Callable[[str], None]


def open_saved(config: TrainConfig, say: Say) -> tuple[Path, Checkpoint] | None:
    """The checkpoint that `config.resume` means; None to start afresh.

    'auto' takes the newest whole one of --out, or else of the newest runs/NET-*, and says which damaged ones
    it passed over. Raises UsageError when a named one is not there, ValueError when it is damaged.
    """
    if config.resume is None:
        return None
    if config.resume != "auto":
        path = find(config.resume)
        return path, load(path)
    for path, found in newest_good(_folders(config)):
        if isinstance(found, Checkpoint):
            return path, found
        say(f"resume   {found}; trying the one before")
    say("resume   no checkpoint to go on from: starting afresh")
    return None


def _folders(config: TrainConfig) -> Iterator[Path]:
    if config.out:
        yield Path(config.out)
    else:
        yield from sorted(Path("runs").glob(f"{config.net}-*"), reverse=True)


def merged(config: TrainConfig, given: set[str] | None, path: Path, saved: Checkpoint,
           say: Say) -> TrainConfig:
    """The saved options, but for those that were `given` now (None: all of them).

    Changes are said. Raises UsageError naming an option that the saved state cannot follow.
    """
    if given is not None:
        now = {name: getattr(config, name) for name in given | {"out", "resume", "inject"}}
        config = replace(saved.config, **now)
    for option, before, after in config.changes(saved.config, essential=True):
        named = "NET" if option == flag("net") else option  # which has no flag
        raise UsageError(f"resume: expected {named} {_shown(before)} as in {path}, got {_shown(after)}")
    say(f"resume   {path}: step {saved.step}, epoch {saved.epoch:.2f}")
    for option, before, after in config.changes(saved.config, essential=False):
        if option not in ("--out", "--resume"):
            say(f"resume   {option} was {_shown(before)}, is now {_shown(after)}")
    return config


def _shown(value: Any) -> str:
    """The value of an option for people."""
    if value is None:
        return "not set"
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def nothing_left(config: TrainConfig, step: int, epoch: float) -> str:
    """Say that a run is over, and which option goes on."""
    option, done = ("--steps", f"step {step} of {config.steps}") if config.steps else \
        ("--epochs", f"epoch {epoch:.2f} of {config.epochs}")
    return f"resume   nothing left to do: {done}; a larger {option} goes on"


def open_folder(config: TrainConfig, resumed: tuple[Path, Checkpoint] | None) -> RunFolder:
    """The run's own folder to go on in, set back to the checkpoint's step; a new one where --out says so."""
    if resumed is None:
        return RunFolder.create(config.out, config.net)
    path, saved = resumed
    home = path.parent.parent
    if path.parent.name != CHECKPOINTS or (config.out and Path(config.out).resolve() != home.resolve()):
        return RunFolder.create(config.out, config.net)
    folder = RunFolder(home).ready()
    folder.rewind(saved.step)
    put_aside(folder.checkpoints, saved.step)
    return folder
