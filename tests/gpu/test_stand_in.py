"""What make test-gpu runs is itself run without a GPU, on the stand-in for CuPy, so that it works when needed."""

from __future__ import annotations

import re
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def pytest_gpu(*arguments):
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=TESTS.parent)
    return done, done.stdout.splitlines()


@pytest.mark.slow
def test_gpu_tests_pass_on_the_stand_in():
    files = "tests/gpu/test_gpu.py", "tests/gpu/test_transport.py", "tests/kernels/test_update.py"
    done, lines = pytest_gpu("--stand-in", *files)
    assert done.returncode == 0, done.stdout
    assert any(line.startswith("cuda:0 (Fake GPU") for line in lines)
    assert any(re.match(r"sgemm 32 +[0-9.]+ +[0-9.]+ GFLOP +[0-9.]+$", line) for line in lines)
    assert int(re.search(r"(\d+) passed", lines[-1])[1]) > 50


@pytest.mark.skipif(bool(find_library("cuda")) or not (TESTS.parent / ".venv/bin/python").exists(),
                    reason="there is a driver, or no .venv")
def test_without_a_driver_make_downloads_nothing():
    done = subprocess.run(["make", "--no-print-directory", "test-gpu"], capture_output=True, text=True, timeout=60,
                          check=False, cwd=TESTS.parent)
    assert done.returncode == 2 and done.stdout.startswith("make: expected an NVIDIA driver (libcuda.so.1), got none")
    assert done.stdout.count("\n") == 1


def test_without_a_gpu_they_say_why(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done, lines = pytest_gpu("-rs", "tests/gpu/test_gpu.py")
    assert done.returncode == 0 and "passed" not in lines[-1]
    assert any(re.search(r"SKIPPED .*(CuPy is not installed|hides every GPU)", line) for line in lines)
