"""Files read whole, with errors that name the file and the cure in one line."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path


def read_whole(path: Path, cure: str) -> bytes:
    """Return the bytes of `path`, unpacked if its name ends in .gz.

    Raises: FileNotFoundError; ValueError for a broken archive.
    """
    if not path.is_file():
        raise FileNotFoundError(f"data: expected the file {path}, got none: {cure}")
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"data: expected a whole gzip file, got {error}: {path}: {cure}") from error


def verify(content: bytes, algorithm: str, expected: str, path: Path, cure: str) -> None:
    """Compare the checksum of `content`. Raises: ValueError naming the file and both sums' beginnings."""
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise ValueError(
            f"data: expected {algorithm} {expected[:12]}..., got {found[:12]}...: {path} is damaged: {cure}"
        )
