"""Checkpoints: one checksummed safetensors file has all that a run needs to go on with equal bytes."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..kernels.source import replace_file
from . import jsontext
from .config import TrainConfig
from .errors import UsageError
from .facts import checked
from .runs import CHECKPOINTS, writing

FORMAT = 1
KEPT = 3  # newest checkpoints of a run that stay on the disk
LATEST = "latest"
ANY_NAME = "step-*.safetensors"
_ARRAYS = ("weights", "optimizer")  # the fields that are arrays by name; the others are JSON


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `step` updates.

    weights: arrays by name, float32, of the net's shapes. optimizer: flat float32 arrays by name.
    worker: place in the data, JSON; generators need no state of their own: deforming and dropout draw from
    (seed, epoch, sample) and (seed, step). choices: convolution algorithms in use, else a resumed run could
    round differently. class_names: by label, so that labels keep their meaning. image_shape: (C, H, W);
    mean, std: per channel of pixels / 255, as the weights know them.
    """

    config: TrainConfig
    step: int
    epoch: float
    weights: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray]
    worker: dict[str, Any]
    choices: dict[str, str]
    class_names: list[str]
    image_shape: tuple[int, int, int]
    mean: list[float]
    std: list[float]


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` to `path`, whole or not at all. Raises OSError naming the file."""
    import safetensors.numpy

    arrays = {f"{kind}.{name}": a for kind in _ARRAYS for name, a in getattr(checkpoint, kind).items()}
    facts = {f.name: getattr(checkpoint, f.name) for f in fields(checkpoint) if f.name not in _ARRAYS}
    text = jsontext.dumps(facts | {"config": checkpoint.config.to_json()})
    metadata = {"format": f"sprint {FORMAT}", "sprint": text, "sha256": _digest(arrays, text)}
    with writing(path):
        replace_file(path, safetensors.numpy.save(arrays, metadata))


def load(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises ValueError, one line with the path, when it is damaged or not one of ours."""
    arrays, metadata = _read(path)
    if metadata.get("format") != f"sprint {FORMAT}":
        found = metadata.get("format", "none")
        raise ValueError(f"checkpoint: expected format 'sprint {FORMAT}', got '{found}': {path}")
    text = metadata.get("sprint", "")
    if metadata.get("sha256") != _digest(arrays, text):
        raise ValueError(f"checkpoint: expected its own checksum, got damaged contents: {path}")
    try:
        facts = checked(text)
    except ValueError as error:
        raise ValueError(f"checkpoint: {error}: {path}") from None
    facts |= {kind: _under(f"{kind}.", arrays) for kind in _ARRAYS}
    return Checkpoint(**facts)


def load_finite(path: Path) -> Checkpoint:
    """load() for those who use the weights. Raises ValueError also when one of them is no finite number."""
    saved = load(path)
    for name, array in saved.weights.items():
        if not np.isfinite(array).all():
            raise ValueError(f"checkpoint: expected finite weights, got others in {name}: {path}")
    return saved


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except OSError as error:
        reason = " ".join(str(error.strerror or error).split()).lower()
        raise OSError(f"checkpoint: expected a file to read, got: {reason}: {path}: name another one") from error
    except (SafetensorError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"checkpoint: expected a whole file, got a damaged one ({why}): {path}") from error


def _under(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _digest(arrays: dict[str, np.ndarray], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype.str}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


# ---- the checkpoints of a run ------------------------------------------------------------------------


def add(folder: Path, checkpoint: Checkpoint) -> Path:
    """Save into the checkpoints `folder` of a run, point `latest` at it, and drop all but the newest ones."""
    path = folder / file_name(checkpoint.step)
    save(path, checkpoint)
    _point_at_newest(folder)
    for old in newest_first(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def _point_at_newest(folder: Path) -> None:
    """Make `latest` name the highest step, whoever else is saving: who looks last, after writing, is right."""
    named = None
    while named != (newest := newest_first(folder)[0].name):
        with writing(folder / LATEST):
            replace_file(folder / LATEST, f"{newest}\n".encode())
        named = newest


def file_name(step: int) -> str:
    """Name of the checkpoint of `step`."""
    return f"step-{step:09d}.safetensors"


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the one of the highest step first."""
    return sorted((path for path in folder.glob(ANY_NAME) if path.is_file()), reverse=True)


def find(place: str | Path) -> Path:
    """The checkpoint that `place` means: a checkpoint itself, or the latest of a run folder.

    Raises UsageError when there is none, ValueError when `latest` does not name one.
    """
    path = Path(place)
    if path.is_file():
        return path
    for folder in (path, path / CHECKPOINTS):
        if (folder / LATEST).is_file():
            return _named(folder / LATEST)
    raise UsageError(f"checkpoint: expected a checkpoint or a run folder with one, got {path}")


def _named(latest: Path) -> Path:
    """The checkpoint beside the file `latest` that it names."""
    name = latest.read_bytes()[:100].decode(errors="replace").strip()
    if not fnmatch.fnmatchcase(name, ANY_NAME) or "/" in name or not (latest.parent / name).is_file():
        raise ValueError(f"checkpoint: expected the name of a checkpoint beside it, got '{name}': {latest}: "
                         "name a checkpoint itself, or go on with --resume auto")
    return latest.parent / name


def newest_good(folders: Iterator[Path]) -> Iterator[tuple[Path, Checkpoint | ValueError | OSError]]:
    """Go through the checkpoints of run folders, newest first, up to the first that is whole.

    Yields each path tried with its checkpoint, or with what is wrong with it.
    """
    for folder in folders:
        for path in newest_first(folder / CHECKPOINTS):
            try:
                yield path, load(path)
                return
            except (ValueError, OSError) as error:
                yield path, error


def put_aside(folder: Path, step: int) -> None:
    """Rename the checkpoints after `step` to *.old: a run that goes on from `step` will write its own."""
    for path in folder.glob(ANY_NAME):
        if path.name > file_name(step):
            with writing(path):
                path.rename(path.with_suffix(".old"))
