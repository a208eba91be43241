"""The profile adds up, knows its bytes and flops, is not fooled by an asynchronous device, and writes what it says."""

from __future__ import annotations

import csv
import itertools
import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from sprint.__main__ import run as sprint_run
from sprint.bench import files, observer, profile_plots, profile_tables
from sprint.bench.ceilings import Ceilings
from sprint.bench.profile import cost, observe, profile
from sprint.bench.profiler import open_step
from sprint.bench.trace import Call, TracedDevice
from sprint.engine import nets
from sprint.engine.tracefile import EVENT_LIMIT, TraceFile
from sprint.kernels import activation, source
from sprint.kernels.conv_shape import ConvShape
from sprint.kernels.host import HostDevice

CEILINGS = Ceilings(50.0, "NumPy copy", 50.0, 100.0, 100.0, 32 << 20, 2)


class Queue(HostDevice):
    """A device whose launches only queue: the work takes `kernel_ms` each and is done when somebody waits for it."""

    def __init__(self, kernel_ms: float) -> None:
        super().__init__(threads=1)
        self.kernel_ms, self.clock_ms = kernel_ms, 0.0

    def _run(self, family, signature, work, values, block):
        self.clock_ms = max(self.clock_ms, 1e3 * time.perf_counter()) + self.kernel_ms

    def synchronize(self):
        time.sleep(max(0.0, self.clock_ms / 1e3 - time.perf_counter()))

    def mark(self):
        return max(self.clock_ms, 1e3 * time.perf_counter())

    def elapsed_ms(self, first, last):
        self.synchronize()
        return last - first


@pytest.fixture(scope="module")
def observed():
    device = TracedDevice(HostDevice(threads=1))
    step = open_step(device, nets.build("cnn-a", 28, width=0.25, classes=10), 3, conv_algo="explicit")
    with step.loader:
        return observe(device, step, 5)


def test_rows_and_host_overhead_add_up_to_the_step(observed):
    steps, untimed = observed
    for step in steps:
        result = profile([step], untimed, CEILINGS)
        assert result.kernels_ms == pytest.approx(sum(event.ms for event in step.events))
        assert result.kernels_ms == pytest.approx(sum(row.ms.median for row in result.rows))
        assert sum(result.parts_ms().values()) == pytest.approx(result.step_ms) == pytest.approx(step.wall_ms)
        assert 0 < result.host_ms < step.wall_ms
        assert result.difference == pytest.approx(step.wall_ms / np.median(untimed) - 1)


def test_every_part_of_an_explicit_step_is_there_in_its_layer_and_pass(observed):
    rows = profile(*observed, CEILINGS).rows
    found = {(row.layer, row.direction, row.part) for row in rows}
    assert {("images", "load", "load"), ("images", "deform", "deform"), ("conv1", "forward", "im2col"),
            ("conv1", "forward", "sgemm"), ("conv2", "forward", "pool"), ("conv2", "forward", "bias"),
            ("conv2", "backward", "col2im"), ("conv2", "backward", "pool"), ("fc6", "backward", "activation"),
            ("loss7", "forward", "softmax"), ("weights", "update", "update")} <= found
    assert ("conv1", "backward", "col2im") not in found  # no gradient to the images


def test_a_queue_is_timed_by_its_work_and_not_by_its_launches():
    """Eight launches of 5 ms that return at once: 40 ms of kernels, of which the launching thread saw nothing."""
    device = TracedDevice(Queue(5.0))
    x = np.zeros(64, np.float32)

    def step():
        with device.range("layer forward"):
            for _ in range(8):
                activation.relu(device, x, x)

    steps, untimed = observe(device, step, 3)
    result = profile(steps, untimed, CEILINGS)
    assert [row.calls for row in result.rows] == [8]
    assert 40 <= result.kernels_ms < 60
    assert result.untimed_ms.median >= 40
    assert all(event.launch_ms < 2.5 for event in steps[0].events)


def test_costs_are_bytes_that_must_move_and_flops():
    a, b, c = (np.zeros(shape, np.float32) for shape in ((5, 7), (7, 3), (5, 3)))
    assert cost(Call("gemm", "sgemm", (a, b, c, False, False, 0.0))).flops == 2 * 5 * 7 * 3
    assert cost(Call("gemm", "sgemm", (a.T.copy(), b, c, True, False, 1.0))).bytes_moved == 4 * (35 + 21 + 2 * 15)
    shape = ConvShape(2, 3, 9, 10, 4, 3, 3)
    seen = cost(Call("native", "direct_forward", ((shape, 1),)))
    assert (seen.flops, seen.bytes_moved) == (2 * shape.macs, 4 * (2 * 3 * 90 + 4 * 18 + 4 * 3 * 56))
    y = np.zeros((6, 50), np.float32)
    assert cost(Call("bias", "add_bias", (y, y[:, 0].copy(), 6, 50))).bytes_moved == 4 * (2 * 300 + 6)


def test_steps_that_differ_are_refused(observed):
    steps, untimed = observed
    steps[1].events.reverse()
    with pytest.raises(RuntimeError, match="same calls"):
        profile(steps, untimed, CEILINGS)
    steps[1].events.reverse()


def test_csv_and_json_hold_every_row(observed):
    result = profile(*observed, CEILINGS)
    rows = list(csv.DictReader(profile_tables.as_csv(result).splitlines()))
    assert [row["kernel"] for row in rows] == [row.kernel for row in result.rows]
    plain = json.loads(profile_tables.as_json(result, {"net": "cnn-a"}, CEILINGS))
    assert plain["net"] == "cnn-a"
    assert [row["ms"]["median"] for row in plain["rows"]] == [row.ms.median for row in result.rows]


def test_a_trace_is_one_event_a_line_and_parses_at_every_length(tmp_path, observed):
    path = tmp_path / "t.json"
    profile_tables.write_trace(path, observed[0])
    lines = path.read_text().splitlines()
    assert json.loads("\n".join(lines))
    for end in (2, 5, len(lines) - 1):  # a killed run: no end, a comma behind the last event
        assert json.loads("\n".join(lines[:end]).rstrip(",") + "]")


def test_odd_names_and_the_bound_of_a_trace(tmp_path):
    trace = TraceFile(tmp_path / "t.json")
    trace.add('a"b\n', "x", 0.0, 1.0)
    trace.written = EVENT_LIMIT
    trace.add("late", "x", 1.0, 1.0)
    trace.close()
    events = json.loads((tmp_path / "t.json").read_text())
    assert [event["name"] for event in events] == ['a"b\n', "end"]
    assert events[-1]["args"]["dropped"] == 1


def run(*arguments, timeout=120):
    return subprocess.run([sys.executable, "-m", "sprint", "profile", *arguments], capture_output=True, text=True,
                          timeout=timeout, check=False)


@pytest.mark.slow
def test_command_writes_all_files(tmp_path):
    files = [tmp_path / name for name in ("p.json", "p.csv", "p.trace", "p.png")]
    outputs = [word for option, path in zip(("--json", "--csv", "--trace", "--plot"), files, strict=True)
               for word in (option, str(path))]
    done = run("lenet", "--subbatch", "2", "--steps", "2", "--device-threads", "1", *outputs)
    assert done.returncode == 0, done.stderr
    assert "difference" in done.stdout
    assert "% ceiling: of what the best copy or sgemm allows" in " ".join(done.stdout.split())
    assert [line for line in done.stderr.splitlines() if "wrote" in line] == [f"wrote {path}" for path in files]
    assert all(path.stat().st_size > 100 for path in files)
    assert files[3].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments", [("cnn-x",), ("lenet", "--steps", "0"), ("lenet", "--subbatch", "0"),
                                       ("lenet", "--json", "/nowhere/p.json"), ("lenet", "--device", "tpu"),
                                       ("lenet", "--conv-algo", "z"), ("lenet", "--classes", "1"),
                                       ("lenet", "--plot", "p.xyz"), ("lenet", "--subbatch", str(2**63)),
                                       ("cnn-a", "--subbatch", "100000000"), ("lenet", "--device-threads", "0")])
def test_bad_input_is_one_line_and_exit_code_2_before_anything_is_measured(monkeypatch, capsys, arguments):
    monkeypatch.setattr("sprint.bench.ceilings.measure_ceilings", None)
    assert sprint_run(["profile", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1


def test_what_does_not_fit_gets_the_sub_batch_that_would(capsys):
    sprint_run(["profile", "cnn-a", "--subbatch", "100000000", "--device", "host"])
    assert re.search(r"memory: .* for --subbatch 100000000: --subbatch \d+ would fit", capsys.readouterr().err)


def full(*_arguments):
    raise OSError(28, "No space left on device")


def test_a_full_disk_names_the_file(monkeypatch, tmp_path, observed):
    result = profile(*observed, CEILINGS)
    for act in (lambda path: files.write_text(path, "x"), lambda path: profile_plots.draw(path, result, CEILINGS, "t")):
        with monkeypatch.context() as patch:
            patch.setattr(source.os, "replace", full)
            with pytest.raises(OSError) as error:
                act(tmp_path / "p.png")
        assert (error.value.filename, error.value.strerror) == (str(tmp_path / "p.png"), "No space left on device")
    assert not list(tmp_path.iterdir())


def test_nothing_in_the_picture_lies_on_anything_else(observed):
    from matplotlib.text import Text

    figure = profile_plots.figure(profile(*observed, CEILINGS), CEILINGS, "title")
    figure.draw_without_rendering()
    bars, roofline = figure.axes
    labels = [Text.get_window_extent(text) for text in roofline.texts]  # without their lines
    assert len(labels) == profile_plots.NAMED
    boxes = [*labels, bars.get_window_extent(), roofline.get_window_extent(), figure.legends[0].get_window_extent()]
    for i, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y0 >= figure.bbox.y0
        assert not any(box.overlaps(other) for other in boxes[:i]), i
    places = [np.array(some.get_offsets()) for some in roofline.collections]
    assert len(np.concatenate(places)) == sum(bool(row.flops) for row in profile(*observed, CEILINGS).rows)
    (left, right), (low, high) = roofline.get_xlim(), roofline.get_ylim()
    assert all(left < x < right and low < y < high for x, y in np.concatenate(places))


@pytest.mark.parametrize("heights", [[0.95, 0.94, 0.93, 0.5, 0.49], [0.02, 0.01, 0.005], [1.2, 0.6, -3.0], []])
def test_labels_stand_apart_and_within_the_height(heights):
    gap = profile_plots.GAP
    placed = profile_plots._apart(heights)
    assert all(gap / 2 <= height <= 1 - gap / 2 for height in placed)
    assert all(upper - lower >= gap - 1e-9 for upper, lower in itertools.pairwise(placed))
    assert profile_plots._apart([0.9, 0.5]) == [0.9, 0.5]


def test_a_trace_on_a_full_disk_names_the_file(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as error, files.naming(tmp_path / "t.json"):
        (tmp_path / "full").write_text("x")
    assert error.value.filename == str(tmp_path / "t.json")


def test_what_takes_long_before_the_first_step_is_said_once(monkeypatch):
    said = []
    monkeypatch.setattr(observer, "_MEASURED", {})
    monkeypatch.setattr(observer, "measure_ceilings", lambda device: said.append("measured") or CEILINGS)
    for _ in range(2):
        observer.RunProfile(3, said.append).wrap(HostDevice(threads=1))
    assert said == ["profile  measuring what this machine can do at best first", "measured"]


@pytest.mark.slow
def test_training_with_profile_writes_the_profile_of_its_steps(tmp_path):
    """Every other step of the run is observed; the weights are those of a run that nobody watches."""
    train = [sys.executable, "-m", "sprint", "train", "lenet", "--limit", "64", "--subbatch", "8", "--steps", "12",
             "--device-threads", "1", "--conv-algo", "implicit"]
    for options in (["--out", str(tmp_path / "seen"), "--profile", "3"], ["--out", str(tmp_path / "alone")]):
        done = subprocess.run([*train, *options], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "seen" / "profile.json").read_text())
    assert result["steps"] == 3
    assert {row["part"] for row in result["rows"]} >= {"load", "deform", "conv", "sgemm", "softmax", "update"}
    assert (tmp_path / "seen" / "profile.png").stat().st_size > 1000
    json.loads((tmp_path / "seen" / "profile.trace.json").read_text())
    scores = [json.loads((tmp_path / name / "summary.json").read_text())["loss"] for name in ("seen", "alone")]
    assert scores[0] == scores[1]
