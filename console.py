"""Entry point of the console script: Ctrl-C ends it without a word while the command line is still being loaded."""

from __future__ import annotations

import sys


def main() -> None:
    """The command line; exit code 130 for Ctrl-C."""
    try:
        from .__main__ import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()
