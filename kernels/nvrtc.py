"""Compiles the kernels for NVIDIA GPUs where there is no GPU: `python -m sprint.kernels.nvrtc`.

CuPy's own compile helper asks for a device, so NVRTC is called here directly.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import functools
import importlib.util
import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import source
from .cuda import OPTIONS
from .host import usable_cores

ARCHITECTURES = (75, 80, 90, 100)  # Turing, Ampere, Hopper, Blackwell
_LIBRARY = "libnvrtc.so*[0-9]"


def library_path() -> str | None:
    """Path or name of the NVRTC library: pip's wheel, CUDA_HOME, /usr/local/cuda or the system's; None without one."""
    for folder in _folders():
        if found := sorted(folder.glob(_LIBRARY)):
            return str(found[-1])
    return ctypes.util.find_library("nvrtc")


def _folders() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for root in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(root).glob("*/lib"))
    for name in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if name:
            yield Path(name) / "lib64"


@functools.cache
def _library() -> ctypes.CDLL:
    path = library_path()
    if path is None:
        raise RuntimeError("nvrtc: expected libnvrtc, got none; pip install nvidia-cuda-nvrtc-cu12")
    return ctypes.CDLL(path)


def version() -> str:
    """Version of the NVRTC library. Raises RuntimeError without one."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_text(text: str, name: str, architecture: int) -> bytes:
    """Machine code (cubin) of CUDA `text` for compute capability `architecture` (80 is 8.0).

    Raises RuntimeError with the first error as file:line, or when there is no NVRTC.
    """
    nvrtc, program = _library(), ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture=sm_{architecture}")]
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)):
            log = _fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
            raise RuntimeError(f"nvrtc: expected {name} to compile for sm_{architecture}, got {first_error(log)}")
        return _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(get_size: ctypes._NamedFuncPointer, get: ctypes._NamedFuncPointer, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    get_size(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    get(program, buffer)
    return buffer.raw


def first_error(log: str) -> str:
    """The first error of a compiler's log as `file:line: error: ...`."""
    found = re.search(r"^(.+)\((\d+)\): ((?:catastrophic )?error.*)$", log, re.M)
    return f"{found[1]}:{found[2]}: {found[3]}" if found else (log.strip().splitlines() or ["no message"])[0]


def _report(job: tuple[str, int]) -> tuple[bool, str]:
    (family, architecture), start = job, time.perf_counter()
    try:
        size = len(compile_text(source.cuda_text(family), f"{family}.cu", architecture))
    except RuntimeError as error:
        return False, f"{family:<12} sm_{architecture:<4} FAILED  {error}"
    return True, f"{family:<12} sm_{architecture:<4} ok {size:8d} bytes {time.perf_counter() - start:6.2f} s"


def main(arguments: list[str] | None = None) -> int:
    """Compile every family for every architecture, a line each. Returns 1 when one fails, 2 without NVRTC."""
    parser = argparse.ArgumentParser(prog="python -m sprint.kernels.nvrtc", description=main.__doc__)
    parser.add_argument("--arch", type=int, nargs="+", default=ARCHITECTURES, help="compute capabilities, 80 is 8.0")
    architectures = parser.parse_args(arguments).arch
    if library_path() is None:
        print("nvrtc: expected libnvrtc, got none; pip install nvidia-cuda-nvrtc-cu12", file=sys.stderr)
        return 2
    jobs = [(family, architecture) for family in source.families() for architecture in architectures]
    failed = 0
    with ThreadPoolExecutor(usable_cores()) as pool:
        for good, line in pool.map(_report, jobs):
            print(line, flush=True)
            failed += not good
    print(f"NVRTC {version()}: {len(jobs) - failed} of {len(jobs)} compiled")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
