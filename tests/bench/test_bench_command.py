"""sprint bench as a user meets it: what it prints and writes, its exit codes, and nothing half-written."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from sprint.__main__ import run
from sprint.bench import kernels, marks, timing
from sprint.bench.ceilings import Ceilings
from sprint.bench.environment import warn_if_busy
from sprint.bench.files import check_writable
from sprint.engine.errors import UsageError
from sprint.kernels import source
from sprint.kernels.host import HostDevice

CEILINGS = Ceilings(1e6, "NumPy copy", 1e6, 1e6, 1e9, 1 << 20, 1)  # nothing on earth is faster
QUICK = ["--repeats", "3", "--device", "host", "--device-threads", "1"]


@pytest.fixture
def quick(monkeypatch):
    """Ceilings are not measured (test_timing.py does that)."""
    monkeypatch.setattr(kernels, "measure_ceilings", lambda device, cache=None: CEILINGS)


def bench(*arguments):
    return run(["bench", *arguments, *QUICK])


def problems(*texts):
    return [word for text in texts for word in ("--problem", text)]


def test_table_and_json_of_problems(quick, tmp_path, capsys):
    path = tmp_path / "b.json"
    texts = ["relu n1000", "sgemm m8n9k10", "conv_forward n1c2h5w6k3r3s3 relu explicit"]
    assert bench(*problems(*texts), "--json", str(path)) == 0
    out, err = capsys.readouterr()
    assert err.endswith(f"wrote {path}\n")
    assert "host:0" in out and "copy 1000000.0 GB/s (NumPy copy, 1 thread" in out and "sgemm 1000000000 GFLOP/s" in out
    assert all(text in out for text in texts)
    assert "x BLAS/copy" in out and re.search(r"relu n1000 .* \d+\.\d\d copy", out) and re.search(r"k10 .*\d BLAS", out)
    data = json.loads(path.read_text())
    assert data["machine"]["threads"] == 1 and data["machine"]["device"].startswith("host:0")
    assert [case["problem"] for case in data["cases"]] == texts
    relu = data["cases"][0]
    assert relu["status"] == "ok" and relu["bytes"] == 8000 and relu["flops"] == 1000 and relu["block"] is None
    assert len(relu["samples_ms"]) == relu["device_ms"]["repeats"] == 3
    assert relu["device_ms"]["median"] == np.median(relu["samples_ms"])
    assert relu["device_ms"]["least"] == min(relu["samples_ms"])
    assert relu["gb_per_s"] == pytest.approx(8e-6 / (relu["device_ms"]["median"] * 1e-3))
    assert relu["limit"] == "memory" and data["cases"][1]["library"]["name"] == "BLAS"
    assert relu["library"]["name"] == "NumPy copy" and relu["first_ms"] > 0
    assert 0 < relu["launch_ms"] < 1
    assert relu["percent_of_copy"] == pytest.approx(100 * relu["times_library"])  # NumPy's copy is the best one here
    assert data["cases"][1]["percent_of_copy"] is None
    assert relu["percent_of_ceiling"] == pytest.approx(100 * relu["gb_per_s"] / 1e6)


def test_help_is_that_of_kernels(capsys):
    for words in (["bench", "--help"], ["bench", "-h"], ["bench", "run", "--help"]):
        assert run(words) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert text.startswith("Usage: sprint bench [KERNEL]... [OPTIONS] Check kernels")
        assert "sprint bench compare compares two results, sprint bench peers steps" in text


def test_json_on_the_screen_is_nothing_but_json(quick, capsys):
    assert bench(*problems("relu n100"), "--json", "-") == 0
    out, err = capsys.readouterr()
    assert [case["problem"] for case in json.loads(out)["cases"]] == ["relu n100"] and "wrote" not in err


@pytest.mark.slow
def test_check_only_times_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kernels, "measure_ceilings", None)
    monkeypatch.setattr(kernels, "measure", None)
    path = tmp_path / "b.json"
    assert bench("--check-only", "--net", "lenet", "--subbatch", "2", "--json", str(path)) == 0
    assert "right: im2col c1n2h28w28r5s5" in capsys.readouterr().out
    cases = json.loads(path.read_text())["cases"]
    assert {case["status"] for case in cases} == {"checked"} and all(case["worst_error"] <= 1 for case in cases)
    assert len(cases) > 30 and all("samples_ms" not in case for case in cases)


def test_a_wrong_kernel_is_not_timed(quick, monkeypatch, tmp_path, capsys):
    honest = HostDevice._run

    def faulty(self, family, signature, work, values, block):
        honest(self, family, signature, work, values, block)
        if signature.name == "sigmoid":
            values[1][3] = 7

    monkeypatch.setattr(HostDevice, "_run", faulty)
    path = tmp_path / "b.json"
    assert bench(*problems("sigmoid n10", "relu n10"), "--json", str(path)) == 1
    wrong, right = json.loads(path.read_text())["cases"]
    assert (wrong["status"], right["status"]) == ("wrong", "ok") and "samples_ms" not in wrong
    out = capsys.readouterr().out
    assert "wrong: sigmoid n10: sigmoid: expected y[3] = " in out and "got 7" in out
    assert "sprint bench --check-only --problem 'sigmoid n10'" in out


def test_names_filter_a_net(quick, tmp_path):
    path = tmp_path / "b.json"
    assert bench("pool", "--net", "lenet", "--subbatch", "1", "--check-only", "--json", str(path)) == 0
    cases = json.loads(path.read_text())["cases"]
    assert {case["op"] for case in cases} == {"max_pool", "max_pool_backward"}
    assert {case["calls"] for case in cases} == {1}


def test_what_the_device_cannot_run_is_skipped(quick, capsys):
    assert bench(*problems("gemm_tiled m8n8k8", "relu n8")) == 0
    assert "skipped 1 case: needs a device with barriers" in capsys.readouterr().out


@pytest.mark.parametrize(("texts", "said"), [
    (["gemm_tiled m8n8k8", "gemm_tiled m9n8k8"], "got 2 that cannot: needs a device with barriers"),
    (["conv n99999c9999h9999w9999k9999r3s3"], r"got 9 that cannot: needs \d+.\d GB, [\d.]+ GB of [\d.]+ GB are free"),
    (["conv_forward n1c8h3333w3333k1r99s99 explicit"], r"got 1 that cannot: needs 98\d\d.\d GB"),  # its columns alone
    (["im2col c1n1h2147483647w9999r1s1"], r"got 1 that cannot: needs \d+.\d GB"),
    (["gemm m2000000000n2000000000k2000000000"], r"got 2 that cannot: needs \d+.\d GB"),
])
def test_where_nothing_can_run_that_is_one_line_before_anything_is_measured(monkeypatch, capsys, texts, said):
    monkeypatch.setattr(kernels, "measure_ceilings", lambda device: pytest.fail("measured"))
    assert bench(*problems(*texts)) == 2
    out, err = capsys.readouterr()
    assert re.fullmatch(f"sprint: bench: expected a case that can run here, {said}.*\n", err) and not out


def test_blocks_are_swept_on_cuda(cupy, quick, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(timing.FLUSH_ROWS, "cuda", 2)
    monkeypatch.setattr(kernels, "measure_ceilings", lambda device: replace(CEILINGS, cache_bytes=1 << 10,
                                                                               copy_method="device copy"))
    path = tmp_path / "b.json"
    assert run(["bench", *problems("relu n1000"), "--device", "cuda", "--block", "64,128", "--repeats", "2",
                "--json", str(path)]) == 0
    cases = json.loads(path.read_text())["cases"]
    assert [case["block"] for case in cases] == [64, 128] and cases[0]["library"]["name"] == "device copy"
    blocks = {launch.block for launch in cupy.launches if launch.name == "relu"}
    assert blocks == {(64, 1, 1), (128, 1, 1)}
    assert "block" in capsys.readouterr().out


# ---- the table in a README

README = "# Title\n\nbefore\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n"


def test_the_table_goes_between_the_marks(quick, tmp_path):
    path = tmp_path / "README.md"
    path.write_text(README)
    assert bench(*problems("relu n1000", "sgemm m4n4k4"), "--readme", str(path)) == 0
    text = path.read_text()
    before, after = README.split("old")
    assert text.startswith(before) and text.endswith(after)
    assert "\nold\n" not in text and "| `relu n1000` |" in text and "copy 1000000.0 GB/s" in text and "host:0" in text


def test_marks_are_replaced_only_when_there_is_one_pair(tmp_path):
    path = tmp_path / "README.md"
    for text in ("no marks", "<!-- bench:begin -->", "<!-- bench:end --><!-- bench:begin -->", README + README):
        path.write_text(text)
        with pytest.raises(UsageError, match="expected one '<!-- bench:begin -->'"):
            marks.write_between(path, "bench", "new")
        assert path.read_text() == text
    windows = README.replace("\n", "\r\n")
    path.write_bytes(windows.encode())
    for _ in range(2):
        marks.write_between(path, "bench", "| new |")
    before, after = windows.split("\r\nold\r\n")
    assert path.read_bytes().decode() == f"{before}\n| new |\n{after}"


# ---- bad input: one line, exit code 2, nothing measured, nothing written

@pytest.mark.parametrize(("arguments", "message"), [
    (["frobnicate"], "expected a kernel of"), (["--problem", "relu n0"], "got n=0"), (["--problem", "conv"], "got ''"),
    (["--repeats", "0"], "got 0 repeats"), (["--repeats", "9" * 20], f"got {'9' * 20} repeats"),
    (["--repeats", "1000001"], "1 to 1,000,000 repeats"),
    (["--seconds", "0"], "got 0 seconds"), (["--seconds", "-1"], "got -1"),
    (["--seconds", "nan"], "got nan seconds"), (["--seconds", "inf"], "got inf seconds"),
    (["--set", "imagenet"], "got 'imagenet'"),
    (["--net", "alexnet"], "got 'alexnet'"),
    (["--device", "tpu"], "got 'tpu'"), (["--device-threads", "0"], "got 0"), (["--block", "64"], "got host:0"),
    (["--net", "lenet", "sigmoid"], "that occur there, got sigmoid"), (["--subbatch", "0"], "--subbatch"),
    (["--subbatch", str(2**63)], "--subbatch"),
    (["--json", "/nowhere/b.json"], "/nowhere/b.json (No such file"), (["--json", "/"], "got the folder /"),
    (["--json", "/dev/null"], "got the device /dev/null"),
    (["--readme", "/nowhere/README.md"], "which is none"), (["--nonsense"], "--nonsense"),
])
def test_bad_input(monkeypatch, tmp_path, capsys, arguments, message):
    monkeypatch.setattr(kernels, "Bench", None)
    monkeypatch.chdir(tmp_path)
    device = [] if "--device" in arguments else ["--device", "host"]
    assert run(["bench", "--json", "out.json", *device, *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and not captured.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("blocks", ["", "a", "64,", "100", "2048", "0"])
def test_bad_blocks(cupy, capsys, blocks):
    assert run(["bench", "relu", "--device", "cuda", "--block", blocks]) == 2
    assert "expected multiples of 32" in capsys.readouterr().err


def test_a_readme_without_marks_is_refused_before_anything_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kernels, "Bench", None)
    path = tmp_path / "README.md"
    path.write_text("nothing here")
    assert bench("relu", "--readme", str(path)) == 2
    assert "expected one '<!-- bench:begin -->'" in capsys.readouterr().err and path.read_text() == "nothing here"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_is_refused(tmp_path):
    path = tmp_path / "b.json"
    path.write_text("{}")
    path.chmod(0o444)
    with pytest.raises(UsageError, match="can be written"):
        check_writable("json", path)


def test_a_failed_write_leaves_the_old_file(quick, monkeypatch, tmp_path):
    path = tmp_path / "b.json"
    path.write_text("old")

    def full(handle, *_):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(source.os, "replace", full)
    assert bench(*problems("relu n10"), "--json", str(path)) == 1
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["b.json"]


def test_ctrl_c_leaves_nothing(quick, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "check", interrupted)
    assert bench(*problems("relu n10"), "--json", str(tmp_path / "b.json")) == 130
    assert not list(tmp_path.iterdir())


def test_a_busy_machine_is_said(capsys):
    for load in (1.9, 2.1):
        warn_if_busy({"load_average": load, "cores": 2})
    assert capsys.readouterr().err == ("warning: times are upper bounds: the machine was not idle: a load of 2.1 on 2 "
                                       "cores\n")
