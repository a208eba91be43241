"""The text of the kernels: reading it, its C signatures, and a cache of what the host compiler made of it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
DTYPES: dict[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "int": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "unsigned char": np.dtype(np.uint8),
    "unsigned": np.dtype(np.uint32),
    "double": np.dtype(np.float64),
}
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.M)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+(?:WIDE\s+)?void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)')


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel as its C text declares it; `pointer` parameters take arrays of `dtype`.

    `alone`: declared __restrict__, so no other parameter may write the same array.
    `strided`: the kernel also takes ld<name>, so that the rows of the matrix may lie apart.
    """

    name: str
    ctype: str
    dtype: np.dtype[Any]
    pointer: bool
    constant: bool
    alone: bool = False
    strided: bool = False


@dataclass(frozen=True)
class Signature:
    """Name and parameters of one `extern "C" __global__` function."""

    name: str
    parameters: tuple[Parameter, ...]


def read(name: str) -> str:
    """Text of a file in kernels/; lines `#include "x.cuh"` are replaced by those files, for caches hash text."""
    text = (FOLDER / name).read_text(encoding="utf-8")

    def included(line: re.Match[str]) -> str:
        next_line = text.count("\n", 0, line.start()) + 2
        return f'{with_line(line[1])}#line {next_line} "{name}"'

    return _INCLUDE.sub(included, text)


def families() -> list[str]:
    """Names of all kernel families (every kernels/*.cu)."""
    return sorted(path.stem for path in FOLDER.glob("*.cu"))


def with_line(name: str) -> str:
    """Text of kernels/`name` behind a #line mark, so that compilers name the file that a person edits."""
    return f'#line 1 "{name}"\n{read(name)}'


def cuda_text(family: str) -> str:
    """What NVRTC compiles: common.cuh is prepended because CuPy's cache does not hash included files."""
    return with_line("common.cuh") + with_line(f"{family}.cu")


@functools.cache
def signatures(family: str) -> dict[str, Signature]:
    """Signatures of all kernels of a family, by name."""
    return parse_signatures(read(f"{family}.cu"))


def parse_signatures(text: str) -> dict[str, Signature]:
    """Signatures of all `extern "C" __global__ void` functions in CUDA text."""
    found = _KERNEL.findall(_COMMENT.sub(" ", text))
    return {name: Signature(name, _parse_parameters(arguments)) for name, arguments in found}


def _parse_parameters(text: str) -> tuple[Parameter, ...]:
    parameters = [_parse_parameter(parameter) for parameter in text.split(",")]
    names = {parameter.name for parameter in parameters}
    return tuple(replace(p, strided=f"ld{p.name}" in names) for p in parameters)


def _parse_parameter(text: str) -> Parameter:
    constant = bool(re.search(r"\bconst\b", text))
    words = re.sub(r"\b(const|__restrict__)\b|\*", " ", text).split()
    ctype, name = " ".join(words[:-1]), "".join(words[-1:])
    dtype = DTYPES.get(ctype)
    if dtype is None:
        raise TypeError(f"kernel parameter: expected a type of {', '.join(DTYPES)}, got '{text.strip()}'")
    return Parameter(name, ctype, dtype, "*" in text, constant, "__restrict__" in text)


def host_text(text: str, mode: str, name: str = "kernels.cu") -> str:
    """C++ text that runs CUDA `text` on the host in `mode` ('fast' or 'simt'), with one launcher a kernel."""
    launcher = _fast_launcher if mode == "fast" else _simt_launcher
    head = [f"#define SPRINT_{mode.upper()} 1\n", with_line("host_cuda.h"), with_line(f"host_{mode}.h")]
    body = [with_line("common.cuh"), f'#line 1 "{name}"\n', text, '\n#line 1 "launchers"\n']
    return "".join(head + body + [launcher(s) for s in parse_signatures(text).values()])


def _declarations(signature: Signature) -> list[str]:
    return [f"{p.ctype}{'*' if p.pointer else ''} {p.name}" for p in signature.parameters]


def _fast_launcher(signature: Signature) -> str:
    names = ", ".join(p.name for p in signature.parameters)
    return f"""
extern "C" void launch_{signature.name}(unsigned grid, int threads, {", ".join(_declarations(signature))}) {{
  #pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (grid > 1)
  for (unsigned block = 0; block < grid; ++block) {{
    sprint_block = block, sprint_grid = grid;
    {signature.name}({names});
  }}
}}
"""


def _simt_launcher(signature: Signature) -> str:
    fields, declarations = "; ".join(_declarations(signature)), ", ".join(_declarations(signature))
    names = ", ".join(p.name for p in signature.parameters)
    members = ", ".join(f"a.{p.name}" for p in signature.parameters)
    name = signature.name
    return f"""
struct arguments_{name} {{ {fields}; }};
static void call_{name}(void* p) {{ arguments_{name}& a = *(arguments_{name}*)p; {name}({members}); }}
extern "C" int launch_{name}(const unsigned* shape, int order, unsigned seed, {declarations}) {{
  arguments_{name} packed_{{{names}}};
  return simt::launch(shape, order, seed, call_{name}, &packed_);
}}
"""


# ---- compiling and the cache -------------------------------------------------------------------------------

FAST_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp")
# A line of an image is short: a call of memcpy costs more than its copy, and a 64-byte vector leaves more of it over.
KERNEL_FLAGS = (*FAST_FLAGS, "-fno-tree-loop-distribute-patterns",
                *["-mprefer-vector-width=256"] * (platform.machine() in ("x86_64", "AMD64")))
SIMT_FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer")
SANITIZE_FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
DIGEST_BYTES = hashlib.sha256().digest_size
COMMON_FLAGS = ("-std=c++17", "-shared", "-fPIC", "-Wno-unknown-pragmas", "-Wno-dangling-else")


def cache_folder() -> Path:
    """Folder of compiled objects: $XDG_CACHE_HOME/sprint or ~/.cache/sprint."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sprint"


@functools.cache
def compiler() -> str:
    """Path of the host's C++ compiler. Raises RuntimeError when there is none."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            return path
    raise RuntimeError("host device: expected a C++ compiler (g++ or clang++), got none on PATH; "
                       "install one, for example: apt-get install g++")


@functools.cache
def _machine_tag() -> str:
    """What a compiled object depends on besides its text: compiler version and processor."""
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=False).stdout
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().split("\n\n")[0].splitlines() if cpu.exists() else [platform.processor()]
    features = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join([version, platform.machine(), *features])


def build(name: str, text: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """Compile C++ `text` with `flags` (or take it from the cache) and load it.

    The cache is keyed by text, flags, compiler and processor. An entry is one file, the object and behind it
    its SHA-256 (which the loader ignores), written under a temporary name and renamed: many ranks may share a
    folder, and a cut or changed entry is compiled anew. An unusable folder costs a private compile.
    Raises RuntimeError with the compiler's first error.
    """
    flags = (*COMMON_FLAGS, *flags)
    key = hashlib.sha256("\0".join([text, *flags, _machine_tag()]).encode()).hexdigest()[:24]
    cached = cache_folder() / f"{name}-{key}.so"
    if _intact(cached):
        return ctypes.CDLL(str(cached))
    with tempfile.TemporaryDirectory(prefix="sprint-") as folder:
        private = _compile(name, text, flags, Path(folder))
        return ctypes.CDLL(str(cached if _publish(private, cached) else private))


def _compile(name: str, text: str, flags: tuple[str, ...], folder: Path) -> Path:
    cpp, shared = folder / f"{name}.cpp", folder / f"{name}.so"
    cpp.write_text(text, encoding="utf-8")
    command = [compiler(), *flags, str(cpp), "-o", str(shared)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.splitlines() or ["no message"]
        message = next((line for line in lines if "error" in line), lines[-1])
        raise RuntimeError(f"host compiler: expected {name} to compile, got {message} "
                           f"({command[0]}, exit code {done.returncode})")
    return shared


def _intact(cached: Path) -> bool:
    try:
        content = cached.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-DIGEST_BYTES]).digest() == content[-DIGEST_BYTES:]


def _publish(private: Path, cached: Path) -> bool:
    """Put a compiled object into the cache; a read-only or full folder only costs others a compile."""
    try:
        content = private.read_bytes()
        cached.parent.mkdir(parents=True, exist_ok=True)
        replace_file(cached, content + hashlib.sha256(content).digest())
    except OSError:
        return False
    return True


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that readers see the old file or the whole new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def build_kernels(family: str, mode: str, sanitize: bool = False) -> ctypes.CDLL:
    """Host library of one kernel family in `mode`; see host_text for its launchers."""
    return build_kernel_text(family, read(f"{family}.cu"), mode, sanitize)


def build_kernel_text(family: str, text: str, mode: str, sanitize: bool = False) -> ctypes.CDLL:
    """The same for CUDA text that is not in kernels/ (tests plant faults this way)."""
    flags = KERNEL_FLAGS if mode == "fast" else SIMT_FLAGS + (SANITIZE_FLAGS if sanitize else ())
    return build(f"{family}-{mode}", host_text(text, mode, f"{family}.cu"), flags)


@functools.cache
def build_host_library(name: str, files: tuple[str, ...]) -> ctypes.CDLL:
    """Host library made of plain C++ `files` of kernels/ joined in that order (the micro-kernel GEMM)."""
    return build(name, "".join(with_line(file) for file in files), FAST_FLAGS)
