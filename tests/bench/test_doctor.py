"""sprint doctor: what is here, what is missing, and the cure."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from sprint.bench import doctor
from sprint.kernels import host, source

PARTS = ["sprint", "device", "compiler", "cache", "cupy", "nvrtc", "driver", "gpu", "mpi", "threads in mpi", "launcher",
         "threads", "memory"]


@pytest.fixture
def quick(monkeypatch):
    """No child that starts MPI: that has its own tests."""
    monkeypatch.setattr(doctor, "_ask_mpi", lambda: {"library": "Some MPI 1.2", "level": "multiple"})


def finding(part):
    return next(f for f in doctor.examine() if f.part == part)


def test_json_names_every_part_and_mpi_stays_outside():
    code = ("import sys; from sprint.bench.doctor import doctor; good = doctor(as_json=True); "
            "sys.exit(not good or 'mpi4py.MPI' in sys.modules or 'cupy' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    report = json.loads(done.stdout)
    assert [entry["part"] for entry in report] == PARTS
    assert all(set(entry) == {"part", "ok", "found", "cure", "needed"} for entry in report)
    assert all(entry["ok"] or entry["cure"] for entry in report)
    by_part = {entry["part"]: entry for entry in report}
    assert by_part["device"]["found"].startswith("host:0 (") or by_part["gpu"]["ok"]
    assert "MPI" in by_part["mpi"]["found"] and by_part["threads in mpi"]["found"] == "multiple"


def test_table_says_what_is_missing_and_the_cure(quick, monkeypatch, capsys):
    def none():
        raise RuntimeError("host device: expected a C++ compiler, got none on PATH; install one: apt-get install g++")

    monkeypatch.setattr(source, "compiler", none)
    assert doctor.doctor() is False
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("compiler"))
    assert lines[start].split()[1] == "missing" and "got none on PATH" in lines[start]
    assert lines[start + 1].split()[0] == "→" and "apt-get install g++" in lines[start + 1]
    assert lines[-1] == "This machine cannot train yet."


def test_each_cure_is_said_once(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_ask_mpi", lambda: doctor.Missing("mpi4py is not installed", doctor._MPI))
    monkeypatch.setattr(doctor.shutil, "which", lambda *_arguments, **_options: None)
    monkeypatch.setattr(doctor.importlib.metadata, "version", _no_package)
    doctor.doctor()
    out = capsys.readouterr().out
    assert out.count(" mpi4py is not installed") == 2 and out.count("no mpirun") == 1 and out.count(doctor._MPI) == 1
    assert out.count("pip install 'sprint-cnn[cuda12]'") == 1


def _no_package(name):
    raise doctor.importlib.metadata.PackageNotFoundError(name)


def test_what_only_some_need_may_be_missing(quick, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert finding("cache").ok is False and "XDG_CACHE_HOME" in finding("cache").cure
    assert doctor.doctor(as_json=True) is True


def test_cache_is_measured(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "sprint").mkdir()
    (tmp_path / "sprint" / "a.so").write_bytes(bytes(3 << 20))
    assert doctor._cache() == f"{tmp_path}/sprint, writable, 1 files, 3.0 MiB"


def test_gpu_is_described_where_there_is_one(quick, cupy):
    assert finding("gpu") == doctor.Finding("gpu", True, "cuda:0 (Fake GPU, compute capability 9.0, fp32)", "", False)
    assert finding("device").found.startswith("cuda:0 ")


def test_a_hidden_gpu_is_explained(quick, cupy, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert (finding("gpu").ok, finding("gpu").cure) == (False, "unset it, or set it to 0")


def test_mpi_that_hangs_is_left_alone(monkeypatch):
    monkeypatch.setattr(doctor, "_ASK_MPI", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "MPI_LIMIT_S", 0.5)
    assert finding("mpi") == doctor.Finding("mpi", False, "MPI did not start within 0 s", doctor._MPI, False)
    assert finding("threads in mpi").ok is False


@pytest.mark.parametrize("program, found", [
    ("import no_such_mpi4py", "mpi4py is not installed"),
    ("raise SystemExit(3)", "exit code 3"),
    ("raise RuntimeError('cannot load MPI library')", "RuntimeError: cannot load MPI library"),
])
def test_mpi_that_does_not_start(monkeypatch, program, found):
    monkeypatch.setattr(doctor, "_ASK_MPI", program)
    assert finding("mpi").found == found and "pip install" in finding("mpi").cure


def test_a_low_thread_level_is_missing(monkeypatch):
    monkeypatch.setenv("MPI4PY_RC_THREAD_LEVEL", "single")
    found = finding("threads in mpi")
    assert (found.ok, found.found) == (False, "single") and "MPI4PY_RC_THREAD_LEVEL" in found.cure


def test_launcher_beside_python_and_as_root(quick, tmp_path, monkeypatch, capsys):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(doctor.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    assert finding("launcher").found == str(mpirun)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 0)
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT", raising=False)
    found = finding("launcher")
    assert found.ok and found.found == f"{mpirun}, for root once two variables are set"
    assert found.cure == "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    doctor.doctor()
    out = capsys.readouterr().out
    assert re.search(r"^launcher +ok, but +/", out, re.MULTILINE) and re.search(r"^sprint +ok +\d", out, re.MULTILINE)
    mpirun.unlink()
    assert finding("launcher").found == "no mpirun"


def test_threads_and_memory(quick):
    assert finding("threads").found.startswith(f"{host.usable_cores()} of {os.cpu_count()} cores; BLAS: ")
    assert "GiB available of" in finding("memory").found
