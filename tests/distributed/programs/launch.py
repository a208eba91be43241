"""Starts a job under the virtual environment's own mpirun, with a time limit that nothing outlives."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PROGRAMS = Path(__file__).parent


class Finished(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float
    timed_out: bool


def find_mpirun():
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


def descendants(pid):
    """Return the process ids below `pid`, deepest last, while the kernel still knows their parents."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, above in parents.items() if above == parent]
    return found[1:]


def end(process):
    """End `process` and everything it started, each by its id."""
    below = descendants(process.pid)
    for pid in [process.pid, *below]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def run_job(command, folder, limit_s, env=None, during=None):
    """Run `command` in its own process group; `during(process)` acts while it runs."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **(env or {})}
    if os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    began, timed_out = time.monotonic(), False
    with (folder / "stdout").open("w+") as out, (folder / "stderr").open("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=environment,
                                   start_new_session=True)
        try:
            if during:
                during(process)
            process.wait(max(0.1, limit_s - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            end(process) if process.poll() is None else None
        seconds = time.monotonic() - began
        out.seek(0), err.seek(0)
        return Finished(process.returncode, out.read(), err.read(), seconds, timed_out)


def run_program(ranks, program, arguments, folder, *, ft=False, limit_s=20.0, env=None, during=None):
    """Run programs/`program` on `ranks` ranks; `ft`: with ULFM."""
    command = [find_mpirun(), *(["--with-ft", "ulfm"] if ft else []), "--oversubscribe", "-n", str(ranks),
               sys.executable, str(PROGRAMS / program), *map(str, arguments)]
    return run_job(command, folder, limit_s, env, during)
