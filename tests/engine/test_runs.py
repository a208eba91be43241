from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from sprint.engine import runs
from sprint.engine.errors import UsageError
from sprint.engine.runs import RunFolder

RECORD = {"step": 1, "epoch": 0.1, "loss": 2.3, "lr": 0.1, "images_per_s": 10.0}


def record(step, **more):
    return {**RECORD, "step": step, "epoch": step / 10, "loss": 3.0 / step, **more}


def test_the_default_folder_is_named_by_net_and_time_and_never_shared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs.time, "strftime", lambda _format: "20160809-101112")
    paths = [RunFolder.create(None, "cnn-a").path for _ in range(3)]
    assert [str(path) for path in paths] == [f"runs/cnn-a-20160809-101112{end}" for end in ("", "-2", "-3")]


def test_an_earlier_run_is_moved_aside_and_nothing_of_it_lost(tmp_path):
    for expected in ([], ["train.1"], ["train.1", "train.2"]):
        folder = RunFolder.create(str(tmp_path / "train"), "mlp")
        assert folder.metrics() == []
        folder.log(record(len(expected) + 1))
        assert sorted(path.name for path in tmp_path.iterdir() if path.name != "train") == expected
    assert [json.loads((tmp_path / name / "metrics.jsonl").read_text())["step"] for name in ("train.1",
    "train.2")] == [1, 2]


@pytest.mark.parametrize("names", [["notes.txt"], ["config.json"], ["checkpoints", "src"], [".hidden"]])
def test_a_folder_that_holds_other_things_is_refused_and_left_alone(tmp_path, names):
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=f"^out: expected a new or empty folder .* got {tmp_path} with .*{names[-1]}"):
        RunFolder.create(str(tmp_path), "mlp")
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_the_root_is_no_run_folder():
    with pytest.raises(UsageError, match=r"^out: .*, got / with "):
        RunFolder.create("/", "mlp")


def test_an_empty_folder_and_the_present_one_are_fine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunFolder.create(".", "mlp").path.resolve() == tmp_path


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/runs/train", "/dev/null"])
def test_a_place_where_no_folder_can_be_is_named_in_one_line(tmp_path, out):
    (tmp_path / "file").write_text("x")
    path = str(tmp_path / out)
    with pytest.raises(OSError) as error:
        RunFolder.create(path, "mlp")
    assert str(error.value).startswith("run folder: expected to write ") and path in str(error.value)
    assert "\n" not in str(error.value)
    assert (tmp_path / "file").read_text() == "x"


def test_metrics_are_read_back_without_a_line_cut_short(tmp_path):
    folder = RunFolder.create(str(tmp_path), "mlp")
    folder.log(record(1))
    folder.log(record(2))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "ep')
    assert folder.metrics() == [record(1), record(2)]


@pytest.mark.parametrize("line", [b'{"step": 3, "ep', b"null", b"[1]", b"{}", b'{"step": "x"}', b"\xff\xfe", b"",
                                  b'{"step": 3, "loss": "x"}'])
def test_a_damaged_line_is_named_with_its_number(tmp_path, line):
    folder = RunFolder.create(str(tmp_path), "mlp")
    folder.log(record(1))
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(line + b"\n")
    folder.log(record(4))
    for act in (folder.metrics, lambda: folder.rewind(4)):
        with pytest.raises(ValueError) as error:
            act()
        message = str(error.value)
        assert f"{tmp_path / 'metrics.jsonl'}, line 2: remove that line" in message and "\n" not in message


def test_rewind_forgets_what_came_after_and_a_cut_line(tmp_path):
    folder = RunFolder.create(str(tmp_path), "mlp")
    for step in range(1, 6):
        folder.log(record(step))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 6')
    folder.rewind(3)
    folder.log(record(4, loss=9.0))
    assert [(r["step"], r["loss"]) for r in folder.metrics()][2:] == [(3, 1.0), (4, 9.0)]


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path):
    folder = RunFolder.create(str(tmp_path), "mlp")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError) as error:
        folder.log(RECORD)
    expected = f"run folder: expected to write {tmp_path}/metrics.jsonl, got: no space left on device"
    assert str(error.value) == expected


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
def test_a_json_file_that_cannot_be_replaced_stays_as_it_was(tmp_path, monkeypatch, name):
    folder = RunFolder.create(str(tmp_path), "mlp")
    folder.write(name, {"a": 1})

    def full(*_paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=f"expected to write .*{name}, got: no space left on device"):
        folder.write(name, {"a": 2})
    monkeypatch.undo()
    assert json.loads((tmp_path / name).read_text()) == {"a": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", name]


LIMITED = """
import resource, sys
from sprint.engine.runs import RunFolder
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
folder = RunFolder.create(sys.argv[1], "mlp")
try:
    for step in range(1, 100):
        folder.log({"step": step, "loss": 1 / 3})
except OSError as error:
    print(error)
"""


def test_when_a_write_is_cut_the_half_line_is_undone(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    start = f"run folder: expected to write {tmp_path}/metrics.jsonl, got: "
    assert done.stdout.startswith(start), done.stderr
    text = (tmp_path / "metrics.jsonl").read_text()
    assert 900 < len(text) <= 1000 and text.endswith("\n")
    assert [json.loads(line)["step"] for line in text.splitlines()] == list(range(1, text.count("\n") + 1))


ENDLESS = """
import sys
from sprint.engine.runs import RunFolder
folder = RunFolder.create(sys.argv[1], "mlp")
step = 0
while True:
    step += 1
    folder.log({"step": step, "text": "x" * (step * 37 % 300)})
"""


def test_a_killed_run_leaves_whole_lines(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)])
    metrics, limit = tmp_path / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size > 200_000) and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    steps = [record["step"] for record in RunFolder(tmp_path).metrics()]
    assert len(steps) > 500 and steps == list(range(1, len(steps) + 1))
    assert metrics.read_text().count("\n") == len(steps)


TESTED = {"test_loss": 0.5, "top1": 0.9, "top5": 1.0}


@pytest.mark.parametrize("records", [
    [record(1)], [record(1, **TESTED)], [record(s) for s in range(1, 9)] + [record(9, **TESTED), record(18,
    **TESTED)],
    [record(1, loss=0.0)],
], ids=["one", "one-tested", "many", "zero"])
def test_curves_are_a_picture_with_something_on_it(tmp_path, records):
    from PIL import Image

    folder = RunFolder.create(str(tmp_path), "mlp")
    for each in records:
        folder.log(each)
    folder.draw_curves("mlp on digits")
    with Image.open(tmp_path / "curves.png") as image:
        assert image.size == (1200, 480)
        pixels = np.asarray(image.convert("RGB"))
    blue, green = (pixels == (31, 119, 180)).all(axis=2), (pixels == (44, 160, 44)).all(axis=2)
    assert blue[:, :600].any() and green[:, 600:].any()  # losses left, accuracies right


def test_without_a_record_there_are_no_curves(tmp_path):
    folder = RunFolder.create(str(tmp_path), "mlp")
    folder.draw_curves("mlp on digits")
    assert not (tmp_path / "curves.png").exists()


def test_the_environment_names_what_a_result_depends_on(fast):
    facts = runs.environment(fast)
    assert json.loads(json.dumps(facts)) == facts
    for key in ("sprint", "python", "numpy", "platform", "processor", "device", "compiler", "blas",
    "started", "command"):
        assert facts[key], key
    assert facts["device"] == fast.describe() and facts["numpy"] == np.__version__


def test_two_processes_cannot_be_in_one_folder(tmp_path):
    code = "import sys; from sprint.engine.runs import RunFolder; RunFolder.create(sys.argv[1], 'x')"
    command = [sys.executable, "-c", code, str(tmp_path / "r")]
    folder = RunFolder.create(str(tmp_path / "r"), "x")
    again = RunFolder(folder.path).ready()  # this one may: a run that is resumed in one process
    del folder
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode and f"out: expected a folder that no other run is in, got {tmp_path / 'r'}" in done.stderr
    assert again.path.is_dir() and not (tmp_path / "r.1").exists()
    del again
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and (tmp_path / "r.1").is_dir()
