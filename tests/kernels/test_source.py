"""The kernels' text: signatures, #line marks, and the cache of compiled objects."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
from sprint.kernels import source

ANSWER = 'extern "C" int answer() { return %d; }\n'
ANSWER_PROGRAM = """
import sys
from sprint.kernels import source
library = source.build("answer", 'extern "C" int answer() { return 42; }', ("-O1",))
sys.exit(library.answer() != 42)
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sprint"


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A folder of kernels with one family `twice`, in place of the real one."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name in ("common.cuh", "host_cuda.h", "host_fast.h", "host_simt.h"):
        (folder / name).write_text(source.read(name))
    (folder / "twice.cu").write_text(
        'extern "C" __global__ void twice(float* x, i64 n) { GRID_STRIDE_LOOP(i, n) x[i] *= 2.f; }\n')
    monkeypatch.setattr(source, "FOLDER", folder)
    return folder


@pytest.fixture
def compiles(monkeypatch):
    """Names of what is compiled from here on."""
    names, compile_ = [], source._compile
    monkeypatch.setattr(source, "_compile", lambda name, *rest: names.append(name) or compile_(name, *rest))
    return names


def answer(number=42):
    return source.build("answer", ANSWER % number, ("-O1",)).answer()


def test_signature_of_a_kernel():
    text = """
// extern "C" __global__ void commented(int a)
extern "C" __global__ void __launch_bounds__(256, 2)
mixed(const float* __restrict__ x, int *labels, const unsigned char* u8, unsigned seed, i64 n,
      float a, double b, /* not part of it */ const i64* extents, i64 ldx) {}
extern "C"   __global__ void second(float* y) {}
"""
    signatures = source.parse_signatures(text)
    assert list(signatures) == ["mixed", "second"]
    found = [(p.name, p.ctype, p.dtype, p.pointer, p.constant, p.strided) for p in signatures["mixed"].parameters]
    assert found == [
        ("x", "float", np.float32, True, True, True),
        ("labels", "int", np.int32, True, False, False),
        ("u8", "unsigned char", np.uint8, True, True, False),
        ("seed", "unsigned", np.uint32, False, False, False),
        ("n", "i64", np.int64, False, False, False),
        ("a", "float", np.float32, False, False, False),
        ("b", "double", np.float64, False, False, False),
        ("extents", "i64", np.int64, True, True, False),
        ("ldx", "i64", np.int64, False, False, False),
    ]


@pytest.mark.parametrize("parameter", ["long n", "size_t n", "float4* x", "", "int"])
def test_unknown_parameter_types_are_refused(parameter):
    with pytest.raises(TypeError, match="kernel parameter: expected a type of float, int, i64"):
        source.parse_signatures(f'extern "C" __global__ void k({parameter}) {{}}')


def test_cuda_text_marks_the_lines_of_its_files(kernels):
    (kernels / "part.cuh").write_text("__device__ inline float one() { return 1.f; }\n")
    (kernels / "user.cu").write_text('// first\n#include "part.cuh"\nint third;\n')
    lines = source.cuda_text("user").splitlines()
    own = lines[lines.index('#line 1 "user.cu"') :]
    assert own == ['#line 1 "user.cu"', "// first", '#line 1 "part.cuh"',
                   "__device__ inline float one() { return 1.f; }", '#line 3 "user.cu"', "int third;"]


@pytest.mark.parametrize("mode", ["fast", "simt"])
@pytest.mark.parametrize("edited", ["common.cuh", "host_cuda.h", "mode", "twice.cu"])
def test_cache_follows_every_text_it_is_made_of(kernels, cache, compiles, mode, edited):
    source.build_kernels("twice", mode)
    source.build_kernels("twice", mode)
    assert compiles == [f"twice-{mode}"]
    path = kernels / (f"host_{mode}.h" if edited == "mode" else edited)
    path.write_text(path.read_text() + "\n")
    source.build_kernels("twice", mode)
    assert compiles == [f"twice-{mode}"] * 2


def test_cache_follows_flags_and_compiler(cache, compiles, monkeypatch):
    answer()
    source.build("answer", ANSWER % 42, ("-O2",))
    monkeypatch.setattr(source, "_machine_tag", lambda: "another compiler, another processor")
    answer()
    assert len(compiles) == len(list(cache.glob("*.so"))) == 3


@pytest.mark.parametrize("harm", ["truncate", "flip", "empty"])
def test_a_damaged_entry_is_compiled_anew(cache, compiles, harm):
    assert answer() == 42
    (entry,) = cache.iterdir()
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.unlink()  # a new file, for the old one is loaded
    entry.write_bytes({"truncate": content[: len(content) // 2], "flip": content, "empty": b""}[harm])
    assert answer() == 42
    assert answer() == 42
    assert len(compiles) == 2


@pytest.mark.parametrize("where", ["a file", "read-only", "gone"])
def test_an_unusable_cache_costs_a_private_compile(tmp_path, monkeypatch, compiles, where):
    blocked = tmp_path / "blocked"
    if where == "a file":
        blocked.write_text("")
    elif where == "read-only":  # root may write everywhere, so the write itself fails
        def refuse(*_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(source, "replace_file", refuse)
    else:
        blocked = tmp_path / "proc" / "0"
        (tmp_path / "proc").symlink_to("/proc")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert answer() == 42
    assert answer() == 42
    assert compiles == ["answer", "answer"]


def test_a_failed_write_leaves_no_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        source.replace_file(tmp_path / "entry.so", b"content")
    assert list(tmp_path.iterdir()) == []


def test_eight_processes_share_an_empty_cache(cache):
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache.parent)}
    processes = [subprocess.Popen([sys.executable, "-c", ANSWER_PROGRAM], env=environment) for _ in range(8)]
    try:
        assert [process.wait(60) for process in processes] == [0] * 8
    finally:
        for process in processes:
            process.kill()
    (entry,) = cache.iterdir()
    assert source._intact(entry)
    assert ctypes.CDLL(str(entry)).answer() == 42


def test_a_compile_error_names_file_and_line(cache):
    text = '\nextern "C" __global__ void wrong(float* x, i64 n) { x[0] = missing; }\n'
    with pytest.raises(RuntimeError, match=r"host compiler: expected planted-fast .*, got planted.cu:2:.*missing"):
        source.build_kernel_text("planted", text, "fast")
    assert not cache.exists()


def test_a_compiler_that_only_fails_is_named_with_its_exit_code(cache, monkeypatch):
    monkeypatch.setattr(source, "compiler", lambda: "/bin/false")
    with pytest.raises(RuntimeError, match=r"^host compiler: .*, got no message \(/bin/false, exit code 1\)$"):
        source.build_kernel_text("planted", 'extern "C" __global__ void f(float* x) { x[0] = 1; }', "fast")


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(source.shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match=r"expected a C\+\+ compiler .* apt-get install"):
        source.compiler.__wrapped__()


def test_two_libraries_with_a_kernel_of_one_name_share_nothing():
    text = """
extern "C" __global__ void count(float* x) {
  __shared__ float calls;
  calls = threadIdx.x == 0 && calls != calls ? STEP : calls + STEP;
  x[0] = calls;
}
"""
    for step in (1.0, 10.0):
        library = source.build_kernel_text("planted", text.replace("STEP", f"{step}f"), "simt")
        x = np.zeros(1, np.float32)
        for _ in range(2):
            assert library.launch_count((ctypes.c_uint * 6)(*[1] * 6), 0, 0, ctypes.c_void_p(x.ctypes.data)) == 0
            assert x[0] == step
