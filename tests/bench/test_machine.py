"""The machine file: read back as written, every fault in one line that names the field, every value with a source."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sprint.bench.machine import Linear, net_key
from sprint.bench.machine_file import MACHINES, load_machine, machine_names, read_machine, save_machine
from sprint.engine.errors import UsageError
from sprint.engine.nets import build


def spoilt(data, path, value):
    """data with the dotted field replaced (or removed if value is None)."""
    *way, last = path.split("/")
    inner = data
    for key in way:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return data


FAULTS = [
    ("schema", 1, "schema: expected 2, got 1"),
    ("name", None, "name: expected a text, got nothing"),
    ("kernels/im2col/alpha", None, "kernels.im2col.alpha: expected a number >= 0 and <= 1e+24, got nothing"),
    ("kernels/im2col/alpha", -1e-9, "kernels.im2col.alpha: expected a number >= 0 and <= 1e+24, got -1e-09"),
    ("kernels/im2col/beta", "1e-6", "kernels.im2col.beta: expected a number >= 0 and <= 1e+24, got '1e-6'"),
    ("kernels/im2col/alpha", True, "kernels.im2col.alpha: expected a number >= 0 and <= 1e+24, got True"),
    ("kernels/im2col/alpha", float("nan"), "kernels.im2col.alpha: expected a number >= 0 and <= 1e+24, got nan"),
    ("kernels/im2col", 3e-9, "kernels.im2col: expected an object, got 3e-09"),
    ("kernels/im2col/delta", 1.0, "kernels.im2col.delta: expected no such field, got 1.0"),
    ("steps/fetch_weights", None, "steps.fetch_weights: expected an object, got nothing"),
    ("steps/fetch_wieghts", {"alpha": 1}, "steps.fetch_wieghts: expected no such field"),
    ("allreduce/beta", None, "allreduce.beta: expected a number >= 0 and <= 1e+24, got nothing"),
    ("device/memory_bytes", 0, "device.memory_bytes: expected a whole number from 1 to 1000000000000000, got 0"),
    ("device/per_node", 1.5, "device.per_node: expected a whole number from 1 to 1024, got 1.5"),
    ("device/kind", "tpu", "device.kind: expected one of host, cuda, got 'tpu'"),
    ("conv", "fft", "conv: expected one of explicit, implicit, winograd, auto, got 'fft'"),
    ("gemm/sgemm/efficiency", 0, "gemm.sgemm.efficiency: expected a number > 0 and <= 1e+24, got 0"),
    ("kernels/im2col/alpha", 1e308, "kernels.im2col.alpha: expected a number >= 0 and <= 1e+24, got 1e+308"),
    ("kernels/im2col/points", [[1, 2], [3]], "kernels.im2col.points: expected a list of pairs of numbers > 0"),
    *[("kernels/im2col/points", [[1, 2], [3, bad]],
       f"kernels.im2col.points[1][1]: expected a number > 0 and <= 1e+24, got {bad!r}")
      for bad in (float("nan"), float("inf"), True, 1e308)],
    ("device/memory_bytes", 10**400,
     "device.memory_bytes: expected a whole number from 1 to 1000000000000000, got 1000"),
    ("device/per_node", 1025, "device.per_node: expected a whole number from 1 to 1024, got 1025"),
    ("jitter", float("inf"), "jitter: expected a number >= 0 and <= 1e+24, got inf"),
    ("contention", {"any": {"9" * 400: {}}}, f"contention.any.{'9' * 400}: expected a count of busy devices as key"),
    ("gemm/sgemm/tile", [64], "gemm.sgemm.tile: expected [rows, columns], got [64.0]"),
    ("contention", {"any": {"two": {}}}, "contention.any.two: expected a count of busy devices as key, got 'two'"),
    ("contention", {"any": {"2": 1.5}}, "contention.any.2: expected an object, got 1.5"),
    ("contention", {"any": {"2": {"gradient": {"alpha": -1}}}},
     "contention.any.2.gradient.alpha: expected a number >= 0 and <= 1e+24, got -1"),
    ("contention", {"any": {"2": {"locks": {"alpha": 1}}}},
     "contention.any.2.locks: expected no such field, got an object"),
    ("sources", {"device": 1}, "sources.device: expected a text, got 1"),
    ("speed", 1.0, "speed: expected no such field, got 1.0"),
]


@pytest.mark.parametrize(("path", "value", "message"), FAULTS)
def test_each_fault_names_its_field_in_one_line(toy_data, path, value, message):
    with pytest.raises(UsageError) as error:
        read_machine(spoilt(toy_data, path, value), "toy.json")
    assert str(error.value).startswith(f"machine toy.json: {message}")
    assert "\n" not in str(error.value)


TABLE_FAULTS = [
    ("m", [8, 4], "m: expected ascending grid lines, got [8.0, 4.0]"),
    ("m", [], "m: expected a list of numbers > 0, got []"),
    ("n", [0, 2], "n[0]: expected a number > 0 and <= 1e+24, got 0"),
    ("k", [1e308], "k[0]: expected a number > 0 and <= 1e+24, got 1e+308"),
    ("seconds", 1.0, "seconds: expected a list of 2, got 1.0"),
    ("seconds", [[[1.0, 2.0]]], "seconds: expected a list of 2, got [[[1.0, 2.0]]]"),
    ("seconds", [[[1.0], [2.0]], [[3.0], 4.0]], "seconds[1][1]: expected a list of 1, got 4.0"),
    ("seconds", [[[None], [None]], [[None], [None]]], "seconds: expected a time > 0 or more"),
    *[("seconds", [[[1.0], [bad]], [[3.0], [4.0]]],
       f"seconds[0][1][0]: expected a number > 0 and <= 1e+24, got {bad!r}")
      for bad in (-4.0, 0, "x", True, float("nan"), float("inf"), 1e308)],
]


@pytest.mark.parametrize(("field", "value", "message"), TABLE_FAULTS)
def test_each_fault_of_a_gemm_grid_names_its_field(toy_data, field, value, message):
    grid = {"m": [4, 8], "n": [1, 2], "k": [16], "seconds": [[[1.0], [2.0]], [[3.0], [4.0]]]}
    toy_data["gemm"] = {"sgemm.nt": grid | {field: value}}
    with pytest.raises(UsageError) as error:
        read_machine(toy_data, "toy.json")
    assert str(error.value).startswith(f"machine toy.json: gemm.sgemm.nt.{message}")


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"schema": 1' + b"0" * 5000 + b"}"])
def test_a_file_that_is_no_json_is_refused(tmp_path, content):
    (tmp_path / "m.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"^machine m\.json: expected JSON, got .+$"):
        load_machine(tmp_path / "m.json")


def test_the_whole_file_must_be_an_object():
    with pytest.raises(UsageError, match=r"^machine x\.json: file: expected an object, got \[1\]$"):
        read_machine([1], "x.json")


def test_a_saved_machine_reads_back_the_same(tmp_path, toy_data):
    toy_data["gemm"]["sgemm.nt"] = {"m": [4, 8], "n": [1, 2], "k": [16],
                                    "seconds": [[[1.0], [None]], [[3.0], [4.0]]], "residual": 0.1}
    toy_data |= {"jitter": 0.03, "sources": {"device": "estimate"}}
    toy_data["contention"] = {"any": {"2": {"copies": {"alpha": 1.5, "beta": 1e-6}}}}
    toy_data["device"]["workspace_bytes"] = 12345
    toy_data["steps"]["load_image"]["points"] = [[10, 0.5], [20, 0.75]]
    first = read_machine(toy_data, "toy.json")
    save_machine(first, tmp_path / "a.json")
    second = load_machine(tmp_path / "a.json")
    save_machine(second, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert json.loads((tmp_path / "a.json").read_text())["gemm"]["sgemm.nt"]["seconds"][0][1] == [None]
    assert second.device == first.device
    assert second.steps == first.steps
    assert second.contention == {"any": {2: {"copies": Linear(1.5, 1e-6)}}}


def test_the_first_gradbuf_of_a_sum_costs_like_the_others_unless_said(toy_data):
    assert read_machine(toy_data, "t").steps["take_gradient"].alpha == 1e-9
    toy_data["steps"]["take_gradient"] = {"alpha": 0, "beta": 3e-6}
    assert read_machine(toy_data, "t").steps["take_gradient"].time(10**6) == 3e-6
    assert read_machine(toy_data, "t").steps["clear_gradient"].time(10**6) == 0


def test_allreduce_is_free_of_the_logarithm_on_one_node(toy):
    np.testing.assert_allclose(toy.allreduce.time(np.array([1, 2, 8]), 10**6), [2e-3, 3e-3, 5e-3], rtol=1e-12)


def test_crowding_is_linear_between_counts_and_proportional_beyond(toy_data):
    assert read_machine(toy_data, "t").crowding("lenet:28", "gradient", 7) == Linear(1.0)
    toy_data["contention"] = {"any": {"1": {"gradient": {"alpha": 1.0}}, "2": {"images": {"alpha": 9}},
                                      "3": {"gradient": {"alpha": 2.0, "beta": 4.0}}}}
    machine = read_machine(toy_data, "t")
    assert [machine.crowding("lenet:28", "gradient", busy) for busy in (1, 2, 3, 6)] == [
        Linear(1.0), Linear(1.5, 2.0), Linear(2.0, 4.0), Linear(4.0, 8.0)]


def test_a_net_has_its_own_crowding_where_the_file_knows_it(toy_data):
    toy_data["contention"] = {"any": {"2": {"gradient": {"alpha": 2.0}}}, "lenet:28": {"2": {"gradient": {"alpha": 3}}}}
    machine = read_machine(toy_data, "t")
    assert [machine.crowding(net_key(build("lenet", pixels)), "gradient", 2).alpha for pixels in (28, 32)] == [3, 2]


def test_only_gradients_are_held_up_where_devices_share_no_cores(toy_data):
    toy_data["contention"] = {"any": {"1": {group: {"alpha": 3.0} for group in ("gradient", "copies")}}}
    crowds = {kind: read_machine(toy_data | {"device": toy_data["device"] | {"kind": kind}}, "t")
              for kind in ("cuda", "host")}
    assert [crowds[kind].crowding("any", "copies", 1).alpha for kind in ("cuda", "host")] == [1.0, 3.0]
    assert crowds["cuda"].crowding("any", "gradient", 1).alpha == 3.0


def test_points_bend_the_line_between_them_and_the_line_goes_on_beyond(toy_data):
    toy_data["kernels"]["im2col"] = {"alpha": 2.0, "beta": 1.0, "points": [[10, 30], [20, 80]]}
    time = read_machine(toy_data, "t").kernel("im2col").time
    np.testing.assert_allclose(time(np.array([10, 15, 20, 40.0])), [30, 55, 80, 80 * 81 / 41])
    assert time(5) == pytest.approx(30 * 11 / 21)


@pytest.mark.parametrize("points", [[], [[1, 2], [1, 3]], [[1, 2, 3]], [[1, -2]], "x"])
def test_points_that_are_no_curve_are_refused(toy_data, points):
    toy_data["steps"]["load_image"] = {"alpha": 1e-9, "points": points}
    with pytest.raises(UsageError, match=r"^machine t: steps\.load_image\.points(\[0\]\[1\])?: expected"):
        read_machine(toy_data, "t")


def test_update_threads_are_busy_only_where_devices_are_cores(toy_data):
    assert read_machine(toy_data, "t").busy(3, 2) == 6
    toy_data["device"]["kind"] = "host"
    assert read_machine(toy_data, "t").busy(3, 2) == 2 * (3 + 0.5)  # two threads a device


def test_lists_of_numbers_stand_in_one_line_of_the_file(tmp_path, toy_data):
    toy_data["steps"]["load_image"]["points"] = [[10, 0.5], [20, 0.75]]
    save_machine(read_machine(toy_data, "t"), tmp_path / "m.json")
    assert "[10.0, 0.5]" in (tmp_path / "m.json").read_text().replace("[ ", "[").replace(" ]", "]")


def test_a_missing_kernel_or_path_is_named_when_it_is_needed(toy):
    with pytest.raises(UsageError, match=r"^machine toy: kernels\.sigmoid: expected alpha and beta, got nothing$"):
        toy.kernel("sigmoid")
    with pytest.raises(UsageError, match=r"^machine toy: gemm\.implicit\.forward: expected a grid or an estimate"):
        toy.gemm_path("implicit.forward")
    assert toy.gemm_path("sgemm.nt") == "sgemm"


def test_an_unknown_machine_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"^machine: expected a file or one of .*tsubame2\.5.*, got 'cray'$"):
        load_machine("cray")


def test_a_file_that_is_not_json_is_named(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UsageError, match=r"^machine bad\.json: expected JSON, got "):
        load_machine(tmp_path / "bad.json")


def constants(data):
    """Dotted fields of every constant of a machine file."""
    for group in ("kernels", "gemm", "steps"):
        yield from (f"{group}.{name}" for name in data[group])
    yield from ("allreduce", "device", "jitter", "conv", "threads", *(["contention"] if "contention" in data else []))


@pytest.mark.parametrize("name", machine_names())
def test_every_value_of_a_shipped_machine_has_a_source(name):
    data = json.loads((MACHINES / f"{name}.json").read_text())
    assert load_machine(name).name == name
    sources, known = set(data["sources"]), set(constants(data))
    assert {field if field in sources else field.split(".")[0] for field in known} == sources
    assert all(len(text) >= len("estimate") for text in data["sources"].values())


def test_the_papers_machines_and_a_host_ship():
    assert {"tsubame2.5", "tsubame-kfc", "xeon-2core"} <= set(machine_names())
    assert (load_machine("xeon-2core").device.kind, load_machine("xeon-2core").device.per_node) == ("host", 2)
    assert load_machine("tsubame2.5").device.per_node == 3
    assert load_machine("tsubame-kfc").device.per_node == 8
