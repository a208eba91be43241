"""Keep what commands print in a document: every block under a mark <!-- $ sprint ... --> is rewritten from a run.

python -m sprint.bench.quote FILE.md
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from ..engine.errors import UsageError
from .files import write_text

BLOCK = re.compile(r"^<!-- \$ (sprint [^\n]*) -->\n```text\n.*?^```$", re.MULTILINE | re.DOTALL)
SCREEN = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}


def quoted(text: str) -> str:
    """The document with every marked block as its command prints it now.

    Raises: UsageError when there is no mark, RuntimeError when a command fails.
    """
    if not BLOCK.search(text):
        raise UsageError("quote: expected a mark like <!-- $ sprint ... --> and a text block, got none")
    return BLOCK.sub(lambda block: _block(block[1]), text)


def _block(command: str) -> str:
    words = [sys.executable, "-m", *shlex.split(command)]
    run = subprocess.run(words, capture_output=True, text=True, env=os.environ | SCREEN, check=False)
    if run.returncode:
        raise RuntimeError(f"quote: expected success of {command}, got {run.stderr.strip()}")
    printed = "\n".join(line.rstrip() for line in run.stdout.splitlines())
    return f"<!-- $ {command} -->\n```text\n$ {command}\n{printed}\n```"


def main() -> None:
    """Rewrite the documents named on the command line."""
    for name in sys.argv[1:]:
        path = Path(name)
        write_text(path, quoted(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
