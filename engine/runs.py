"""The folder of a run: what was asked, what happened, the curves, the summary, and its checkpoints."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..kernels import blas, source
from ..kernels.device import Device
from ..kernels.host import processor_name
from . import curves, jsontext
from .errors import UsageError

CONFIG, METRICS, SUMMARY, CURVES = "config.json", "metrics.jsonl", "summary.json", "curves.png"
CHECKPOINTS = "checkpoints"
_OWN: dict[tuple[int, int], list[int]] = {}  # folders of this process's runs: handle, and how many hold it
DRAWN = ("epoch", "loss", "test_loss", "top1", "top5")  # figures of a record that the curves show


class RunFolder:
    """A run's files. Every file but metrics.jsonl is replaced whole; that one grows by whole lines.

    All methods raise OSError, one line that names the file, when the disk is full or the folder unwritable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINTS

    @classmethod
    def create(cls, out: str | None, net: str) -> RunFolder:
        """An empty run folder at `out`, by default runs/<net>-<time>; an earlier run there is moved aside.

        Raises UsageError when there is something else in it.
        """
        path = Path(out) if out else _free(Path("runs") / f"{net}-{time.strftime('%Y%m%d-%H%M%S')}", "-")
        with writing(path):
            if path.is_dir() and (names := {entry.name for entry in path.iterdir()}):
                if CHECKPOINTS not in names or (not names & {CONFIG, METRICS} and names > {CHECKPOINTS}):
                    raise UsageError(f"out: expected a new or empty folder or an earlier run, got {path} with "
                                     f"{', '.join(sorted(names)[:3])}")
                earlier = path.resolve()
                _release(_claim(earlier))
                earlier.rename(_free(earlier.with_name(earlier.name + ".1"), "."))
            path.mkdir(parents=True, exist_ok=True)
        return cls(path).ready()

    def ready(self) -> RunFolder:
        """Make sure that the folder takes files, and keep other processes out of it. Returns itself.

        Raises UsageError when another run is in it.
        """
        with writing(self.path):
            weakref.finalize(self, _release, _claim(self.path))
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".{os.getpid()}.probe"
            probe.write_bytes(b"")
            probe.unlink()
        return self

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Replace the JSON file `name`."""
        self.replace(name, (jsontext.dumps(data, indent=2) + "\n").encode())

    def log(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl in one write, of which no part stays when the disk is full.

        A kill between two pages of that write could cut the last line; metrics() and rewind() leave such a one out.
        """
        line = (jsontext.dumps(record) + "\n").encode()
        with writing(self.path / METRICS):
            handle = os.open(self.path / METRICS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                size = os.fstat(handle).st_size
                if os.write(handle, line) != len(line):
                    os.ftruncate(handle, size)
                    raise OSError(28, "No space left on device")
            finally:
                os.close(handle)

    def summary(self, step: int) -> dict[str, Any]:
        """What summary.json says of a run that ended with `step`; nothing where there is no such."""
        try:
            found = json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and found.get("steps") == step else {}

    def metrics(self) -> list[dict[str, Any]]:
        """All records of metrics.jsonl, None for what is no number; a last line cut short is left out.

        Raises ValueError naming the file and the line that is none of ours.
        """
        path = self.path / METRICS
        if not path.exists():
            return []
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        return [_record(line, f"{path}, line {number}") for number, line in enumerate(whole.splitlines(), start=1)]

    def rewind(self, step: int) -> None:
        """Forget the records after `step`: a run that goes on from there will make them again."""
        kept = "".join(jsontext.dumps(r) + "\n" for r in self.metrics() if r["step"] <= step)
        with writing(self.path / METRICS):
            source.replace_file(self.path / METRICS, kept.encode())

    def draw_curves(self, title: str) -> None:
        """Draw losses and accuracies into curves.png; nothing when there is no record yet."""
        records = [record for record in self.metrics() if "epoch" in record and record.get("loss") is not None]
        if records:
            self.replace(CURVES, curves.curves(records, title))

    def replace(self, name: str, content: bytes) -> None:
        """Replace the file `name`."""
        with writing(self.path / name):
            source.replace_file(self.path / name, content)


def _claim(path: Path) -> tuple[int, int]:
    """Keep other processes out of a folder until as many _release() of what this returns, or the end of this one.

    Raises UsageError when another process has it, OSError.
    """
    handle = os.open(path, os.O_RDONLY)
    found = os.fstat(handle)
    place = found.st_dev, found.st_ino
    if place in _OWN:
        os.close(handle)
        _OWN[place][1] += 1
        return place
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UsageError(f"out: expected a folder that no other run is in, got {path}") from None
    except OSError:
        pass  # a file system without locks
    _OWN[place] = [handle, 1]
    return place


def _release(place: tuple[int, int]) -> None:
    own = _OWN[place]
    own[1] -= 1
    if not own[1]:
        os.close(own[0])
        del _OWN[place]


def environment(device: Device) -> dict[str, Any]:
    """What a result depends on besides the options: versions, processor, device, compiler, BLAS."""
    return {
        "sprint": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": processor_name(),
        "device": device.describe(),
        "compiler": _compiler() if device.kind == "host" else None,
        "blas": blas.describe(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
    }


def _compiler() -> str:
    done = subprocess.run([source.compiler(), "--version"], capture_output=True, text=True, check=False)
    return f"{source.compiler()}: {done.stdout.partition(chr(10))[0]}"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into one that says in one line which file could not be written and why."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OSError(f"run folder: expected to write {path}, got: {reason}") from error


def _record(line: bytes, place: str) -> dict[str, Any]:
    """The record that a line of metrics.jsonl holds."""
    try:
        record = jsontext.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int) \
            or not all(isinstance(record.get(name), int | float | None) for name in DRAWN):
        got = line[:40].decode(errors="replace")
        raise ValueError(f"run folder: expected a record of a step, got '{got}': {place}: remove that line to go on")
    return record


def _free(path: Path, sign: str) -> Path:
    """`path`, or the first of path-2, path-3, ... (path.2 after path.1) that does not exist."""
    stem, number = (path.name, 1) if sign == "-" else (path.name.rpartition(".")[0], 1)
    while path.exists():
        number += 1
        path = path.with_name(f"{stem}{sign}{number}")
    return path
