"""Every kernel compiles for NVIDIA GPUs, without a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from sprint.kernels import nvrtc, source

pytestmark = pytest.mark.skipif(nvrtc.library_path() is None, reason="needs pip's nvidia-cuda-nvrtc-cu12")


@pytest.mark.parametrize("family", source.families())
def test_family_compiles_for_sm_80(family):
    cubin = nvrtc.compile_text(source.cuda_text(family), f"{family}.cu", 80)
    assert cubin[:4] == b"\x7fELF"
    for kernel in source.signatures(family):
        assert kernel.encode() in cubin


@pytest.mark.parametrize("family, line", [("im2col", 1), ("pool", 17), ("gemm", 3), ("gemm", 12)])
def test_error_names_the_line_that_a_person_edits(family, line, tmp_path, monkeypatch):
    shutil.copytree(source.FOLDER, tmp_path / "kernels", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    edited = tmp_path / "kernels" / f"{family}.cu"
    lines = edited.read_text().splitlines()
    lines.insert(line - 1, "}" * 9 + " no_such_name")
    edited.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(source, "FOLDER", tmp_path / "kernels")
    with pytest.raises(RuntimeError, match=rf"^nvrtc: expected {family}.cu to compile for sm_90, got "
                                           rf"{family}.cu:{line}: error: "):
        nvrtc.compile_text(source.cuda_text(family), f"{family}.cu", 90)


def test_command_prints_a_line_a_family_and_fails_on_an_error(tmp_path, monkeypatch, capsys):
    (tmp_path / "common.cuh").write_text("typedef long long i64;\n")
    (tmp_path / "fine.cu").write_text('extern "C" __global__ void fine(float* x, i64 n) { x[n] = 0; }\n')
    monkeypatch.setattr(source, "FOLDER", tmp_path)
    assert nvrtc.main(["--arch", "75", "90"]) == 0
    (tmp_path / "wrong.cu").write_text('\nextern "C" __global__ void wrong(float* x, i64 n) { y[n] = 0; }\n')
    assert nvrtc.main(["--arch", "80"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()[:3]) for line in lines[:2]] == ["fine sm_75 ok", "fine sm_90 ok"]
    assert 'wrong.cu:2: error: identifier "y" is undefined' in lines[4]
    assert lines[5].endswith("1 of 2 compiled")


def test_command_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "sprint.kernels.nvrtc", "--help"], capture_output=True, text=True,
                          timeout=60, check=True)
    assert "--arch" in done.stdout
