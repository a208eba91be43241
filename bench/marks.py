"""Text between marks: the parts of a README that a tool writes, so that no number there is typed by hand."""

from __future__ import annotations

from pathlib import Path

from ..engine.errors import UsageError
from .files import check_writable, write_text


def check_marks(path: Path, name: str) -> None:
    """Raise UsageError when `path` cannot be written or lacks the marks of `name`."""
    if not path.is_file():
        raise UsageError(f"readme: expected a file with marks, got {path}, which is none")
    check_writable("readme", path)
    _split(path, name)


def write_between(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->` by `text`; the rest stays as it is.

    Raises UsageError when a mark is missing, doubled or out of order.
    """
    before, after = _split(path, name)
    write_text(path, f"{before}\n{text.strip()}\n{after}")


def _split(path: Path, name: str) -> tuple[str, str]:
    """What comes up to and with the first mark, and from the second mark on."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = path.read_bytes().decode()  # line ends stay as they are
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UsageError(f"readme: expected one '{begin}' and one '{end}' behind it in {path}")
    return text[: text.index(begin) + len(begin)], text[text.index(end):]
