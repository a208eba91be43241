"""Files that a command is given: of bounded size to read; writable before anything is measured, and then whole."""

from __future__ import annotations

import errno
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..engine.errors import UsageError
from ..kernels.source import replace_file

LARGEST = 64 << 20  # bytes of a file to read: a device may have no end


def read_json(path: Path) -> Any:
    """What the JSON file `path` holds. Raises OSError, also for more than LARGEST bytes; ValueError: it is no JSON."""
    with path.open("rb") as stream:
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, f"larger than {LARGEST >> 20} MiB", str(path))
    return json.loads(content.decode())


def check_writable(option: str, path: Path | None) -> None:
    """Raise UsageError, naming the option, when `path` cannot be written."""
    if path is None or str(path) == "-":
        return
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        kind = "folder" if path.is_dir() else "device"
        raise UsageError(f"{option}: expected a file to write, got the {kind} {path}")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.exists():
            path.open("ab").close()
    except OSError as error:
        raise UsageError(f"{option}: expected a file that can be written, got {path} ({error.strerror})") from None


def check_picture(option: str, path: Path | None) -> None:
    """The same for a picture, which is a PNG whatever its name says."""
    if path is not None and path.suffix.lower() != ".png":
        raise UsageError(f"{option}: expected a name that ends in .png, got {path}")
    check_writable(option, path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError name `path`, not the file that was to take its place or none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write(path: Path, content: bytes) -> None:
    """Write `content` so that readers see the old file or the whole new one; a link stays one."""
    with naming(path):
        replace_file(path.resolve(), content)


def write_text(path: Path, text: str) -> None:
    """The same for a text."""
    write(path, text.encode())


def say_written(*paths: Path | None) -> None:
    """Name the files that a command has written, on standard error; - is none."""
    for path in paths:
        if path and str(path) != "-":
            print(f"wrote {path}", file=sys.stderr)
