"""Starts a job under the virtual environment's own mpirun, with a time limit that nothing outlives."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

PROGRAMS = Path(__file__).parent
JOB = "SPRINT_TEST_JOB"  # the variable that marks every process of a job, whoever its parent is by now
OUTLIVES_S = 10.0  # how long what mpirun leaves behind may still write a checkpoint


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


def members(job):
    """Return the process ids that carry the mark of `job`, orphans included."""
    mark, found = f"{JOB}={job}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def end(process, job):
    """End `process`, if it still runs, and everything of its job that does not end by itself; each by its id."""
    deadline = time.monotonic() + (OUTLIVES_S if process.poll() is not None else 0)
    while (left := members(job)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def run_job(command, folder, limit_s, env=None, during=None):
    """Run `command` in its own process group; `during(process)` acts while it runs. Nothing of it is left."""
    job = uuid.uuid4().hex
    environment = {**os.environ, JOB: job, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **(env or {})}
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
            seconds = time.monotonic() - began
            end(process, job)
        out.seek(0), err.seek(0)
        return Finished(process.returncode, out.read(), err.read(), seconds, timed_out)


def run_program(ranks, program, arguments, folder, *, ft=False, limit_s=20.0, env=None, during=None):
    """Run programs/`program` on `ranks` ranks; `ft`: with ULFM."""
    command = [find_mpirun(), *(["--with-ft", "ulfm"] if ft else []), "--oversubscribe", "-n", str(ranks),
               sys.executable, str(PROGRAMS / program), *map(str, arguments)]
    return run_job(command, folder, limit_s, env, during)
