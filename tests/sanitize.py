"""Runs Python under AddressSanitizer: `python tests/sanitize.py -m pytest --sanitize tests/kernels -k simt-`.

The kernels are built with the sanitizers, the interpreter is not, so the runtime must be loaded before everything else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sprint.kernels import source


def environment() -> dict[str, str]:
    """This process's environment with the sanitizers' runtime preloaded. Raises RuntimeError without one."""
    libraries = []
    for name in ("libasan.so", "libstdc++.so"):  # the latter so that C++ exceptions are intercepted
        command = [source.compiler(), f"-print-file-name={name}"]
        path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
        if not path.is_absolute():
            raise RuntimeError(f"sanitize: expected {source.compiler()} to have {name}, got none; use g++")
        libraries.append(str(path.resolve()))
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter frees nothing at its end
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


if __name__ == "__main__":
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment())
