"""The sub-commands predict, plan and simulate from the outside."""

from __future__ import annotations

import json

import pytest
import typer
from sprint.__main__ import run as main
from sprint.bench import commands_model
from sprint.bench.commands_model import whole_range
from sprint.engine.errors import UsageError
from typer.testing import CliRunner

HERE = ["--machine", "tsubame2.5"]


@pytest.fixture(scope="module")
def app():
    app = typer.Typer()
    for command in (commands_model.predict, commands_model.plan, commands_model.simulate):
        app.command()(command)
    return app


def run(app, *words):
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})
    if result.exception:
        raise result.exception
    return result.output


def test_a_picture_on_a_full_disk_is_named(app, monkeypatch, tmp_path):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    for words in (["plan", "cnn-a", *HERE, "--nodes", "1..2", "--subbatch", "1..2"],
                  ["simulate", "cnn-a", *HERE, "--nodes", "2", "--subbatch", "5"]):
        with pytest.raises(OSError, match="No space left") as error:
            run(app, *words, "--plot", str(tmp_path / "p.png"))
        assert error.value.filename == str(tmp_path / "p.png")


def test_predict_prints_the_sixteen_terms_and_the_results(app):
    output = run(app, "predict", "cnn-a", *HERE, "--nodes", "16", "--subbatch", "5")
    for word in ("LockWeights_G", "FetchWeights", "LoadImage", "DeformImage", "ComputeGradient", "ComputeUpdateVal",
                 "LockGradient_G", "UpdateGradient", "T_GPU", "LockGradient_U", "SumGradient", "UpdateOldWeights",
                 "AddMomentum", "Allreduce", "UpdateMomentum", "LockWeights_U", "UpdateWeights", "T_Update",
                 "T_Barrier", "T_Epoch", "mini-batch", "staleness", "GiB"):
        assert word in output
    assert "16 nodes x 3 devices" in output


def test_predict_prints_json_alone(app):
    output = run(app, "predict", "lenet", *HERE, "--nodes", "2", "--subbatch", "8", "--json", "-")
    result = json.loads(output)["predict"]
    assert result["config"]["devices"] == 3
    assert result["t_gpu"] == pytest.approx(sum(result["gpu_terms"].values()))
    assert sum(result["minibatch"]["probabilities"]) == pytest.approx(1)


def test_simulate_stands_beside_the_prediction(app, tmp_path):
    output = run(app, "simulate", "lenet", *HERE, "--nodes", "2", "--subbatch", "8", "--updates", "30", "--slow", "1:2",
                 "--kill", "0:0.01", "--json", str(tmp_path / "s.json"), "--plot", str(tmp_path / "s.png"))
    assert "predicted (ms)" in output
    assert "simulated (ms)" in output
    assert "error" in output
    assert [f"wrote {tmp_path / name}" in output for name in ("s.json", "s.png", "p.png")] == [True, True, False]
    assert set(json.loads((tmp_path / "s.json").read_text())) == {"predict", "simulate"}
    assert (tmp_path / "s.png").stat().st_size > 10_000


def test_simulate_draws_from_a_file_of_times(app, tmp_path):
    (tmp_path / "times.json").write_text("[0.25]")
    result = json.loads(run(app, "simulate", "lenet", *HERE, "--nodes", "1", "--subbatch", "8", "--updates", "200",
                            "--times", str(tmp_path / "times.json"), "--json", "-"))
    assert result["simulate"]["gpu_terms"]["compute_gradient"] == pytest.approx(0.25)


def test_plan_ranks_and_says_why_others_lost(app, tmp_path):
    output = run(app, "plan", "cnn-a", *HERE, "--nodes", "10..30", "--devices", "3", "--subbatch", "1..11",
                 "--batch", "138", "--tolerance", "25%", "--memory", "2", "--json", str(tmp_path / "p.json"),
                 "--plot", str(tmp_path / "p.png"))
    assert "mini-batch too small" in output
    assert "memory" in output
    assert output.splitlines()[-2:] == [f"wrote {tmp_path / name}" for name in ("p.json", "p.png")]
    plain = json.loads((tmp_path / "p.json").read_text())
    cells = plain["configurations"]
    admissible = {(cells["nodes"][i], cells["subbatch"][i]) for i in plain["ranked"]}
    assert (16, 5) in admissible
    assert str(cells["nodes"][plain["ranked"][0]]) in output
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_plan_all_prints_every_configuration(app):
    output = run(app, "plan", "lenet", *HERE, "--nodes", "1,2", "--subbatch", "8..10", "--batch", "5",
                 "--tolerance", "0.9", "--max-staleness", "9", "--all")
    rows = [line.split() for line in output.splitlines()]
    listed = {(words[0], words[1]) for words in rows if len(words) > 3 and words[1] in ("8", "9", "10")}
    lost = {(words[words.index("x") - 1], words[words.index("x") + 1].rstrip(":")) for words in rows if "x" in words}
    starred = {(words[1], words[2]) for words in rows if words[:1] == ["*"]}
    assert len({pair for pair in listed | lost | starred if pair[1] in ("8", "9", "10")}) == 6


def test_a_tolerance_is_a_part_or_a_percentage(app):
    words = ["plan", "cnn-a", *HERE, "--nodes", "10..20", "--subbatch", "5", "--batch", "138", "--tolerance"]
    assert run(app, *words, "20%") == run(app, *words, "0.2")
    assert run(app, *words, "20%") != run(app, *words, "0.25")


@pytest.mark.parametrize(("text", "numbers"), [
    ("1..4", [1, 2, 3, 4]), ("7", [7]), ("1,2,16", [1, 2, 16]), ("1..9:4,4", [1, 4, 5, 9])])
def test_ranges(text, numbers):
    assert whole_range("nodes", text) == numbers


@pytest.mark.parametrize("text", ["", "a", "0..3", "4..1", "1..x", "1..9:0", "-2"])
def test_bad_ranges_name_the_option(text):
    with pytest.raises(UsageError, match=r"^nodes: expected "):
        whole_range("nodes", text)


ONE = ["--nodes", "1", "--subbatch", "1"]


@pytest.mark.parametrize(("words", "message"), [
    (["predict", "vgg", *HERE, *ONE], "net: expected one of cnn-a"),
    (["predict", "lenet", "--machine", "cray", *ONE], "machine: expected a file or one of"),
    (["predict", "lenet", *HERE, "--nodes", "0", "--subbatch", "1"], "nodes: expected a whole number from 1 to 100000"),
    (["predict", "lenet", *HERE, *ONE, "--plot", "x.bmp"], "plot: expected a file named .png"),
    (["predict", "lenet", *HERE, *ONE, "--json", "/none/x.json"], "json: expected a file that can be written, got"),
    (["plan", "lenet", *HERE, *ONE, "--tolerance", "much"], "tolerance: expected a part like"),
    (["plan", "lenet", *HERE, *ONE, "--memory", "-1"], "memory: expected a number > 0"),
    (["simulate", "lenet", *HERE, *ONE, "--slow", "x"], "slow: expected NODE:NUMBER, got 'x'"),
])
def test_bad_requests_are_usage_errors_of_one_line(app, words, message):
    with pytest.raises(UsageError) as error:
        run(app, *words)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_times_that_are_no_list_are_refused(app, tmp_path):
    (tmp_path / "t.json").write_text('{"a": 1}')
    with pytest.raises(UsageError, match=r"^times: expected a list of numbers > 0, got an object$"):
        run(app, "simulate", "lenet", *HERE, *ONE, "--times", str(tmp_path / "t.json"))


HUGE = "99999999999999999999999999"
GRID = ["plan", "--subbatch", "1", "--nodes"]
PLAN, PLAY = [*GRID, "1"], ["simulate", *ONE]


@pytest.mark.parametrize(("words", "message"), [
    *[([*PLAN, "--" + name, "nan"], f"plan: {name}: expected a number > 0 and <= 1e+24, got nan")
      for name in ("batch", "max-staleness")],
    *[([*PLAN, "--memory", bad], f"memory: expected a number > 0 and <= 1e+24, got {bad}") for bad in ("nan", "0.0")],
    ([*PLAN, "--tolerance", "nan%"], "plan: tolerance: expected a number >= 0 and <= 1e+24, got nan"),
    ([*PLAN, "--show", "-1"], "show: expected a whole number from 0 to 1000000000000000, got -1"),
    ([*GRID, "1..1000000000"], "nodes: expected a whole number from 1 to 100000, got 1000000000"),
    ([*GRID, HUGE], f"nodes: expected a whole number from 1 to 100000, got {HUGE}"),
    ([*GRID, f"1..{HUGE}:2,3"], f"nodes: expected a whole number from 1 to 100000, got {HUGE}"),
    ([*GRID, "9" * 5000], f"nodes: expected a range like 1..64, 1..64:4 or 1,2,4, got '{'9' * 56}..."),
    (["plan", "--nodes", "1", "--subbatch", f"1..{HUGE}"],
     f"subbatch: expected a whole number from 1 to 100000, got {HUGE}"),
    (["plan", "--nodes", "1..10000", "--subbatch", "1..10000"],
     "plan: nodes times subbatch: expected a whole number from 1 to 2000000, got 100000000"),
    *[([*command, "--devices", HUGE], f"devices: expected a whole number from 1 to 1024, got {HUGE}")
      for command in (PLAN, PLAY, ["predict", *ONE])],
    *[([*command, "--images", "0"], "images: expected a whole number from 1 to 1000000000000000, got 0")
      for command in (PLAN, PLAY, ["predict", *ONE])],
    *[([*command, "--ranks-per-host", "0"], "ranks-per-host: expected a whole number from 1 to 100000, got 0")
      for command in (PLAN, PLAY, ["predict", *ONE])],
    ([*PLAY, "--seed", "-1"], "simulate: seed: expected a whole number from 0 to 1000000000000000, got -1"),
    *[([*PLAY, f"--{name}", f"0:{bad}"], f"simulate: {name}: expected a number > 0 and <= 1e+24, got {bad}")
      for name in ("kill", "slow") for bad in ("nan", "inf")],
    *[([*PLAY, "--detect", bad], f"simulate: detect: expected a number >= 0 and <= 3600, got {bad}")
      for bad in ("nan", "inf", "1e+20")],
    *[([*PLAY, "--jitter", bad], f"simulate: jitter: expected a number >= 0 and <= 1e+24, got {bad}")
      for bad in ("nan", "inf")],
])
def test_numbers_out_of_bounds_name_their_option_and_end_with_2(capsys, words, message):
    assert main([words[0], "lenet", *HERE, *words[1:]]) == 2
    assert capsys.readouterr() == ("", f"sprint: {message}\n")


@pytest.mark.parametrize(("content", "message"), [
    *[(f"[0.1, {bad}]", f"times[1]: expected a number > 0 and <= 1e+24, got {got}")
      for bad, got in (("NaN", "nan"), ("Infinity", "inf"), ("true", "True"), ('"1"', "'1'"), ("0", "0"),
                       ("1e308", "1e+308"))],
    ("[]", "times: expected a list of numbers > 0, got []"),
    ("[0.1", "times: expected a JSON list of seconds in t.json, got Expecting ',' delimiter: line 1 column 5 (char 4)"),
])
def test_times_that_are_none_are_named_and_end_with_2(capsys, monkeypatch, tmp_path, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.json").write_text(content)
    assert main(["simulate", "lenet", *HERE, *ONE, "--times", "t.json"]) == 2
    assert capsys.readouterr() == ("", f"sprint: {message}\n")


def test_the_largest_plan_and_the_largest_numbers_are_served(app):
    assert max(whole_range("nodes", "1..100000:99999,2")) == 100_000
    output = run(app, "plan", "lenet", *HERE, "--nodes", "100000", "--subbatch", "1", "--batch", "1e24",
                 "--max-staleness", "1e24", "--memory", "1e9", "--tolerance", "1e24", "--show", "1")
    assert "1 of 1 configurations are admissible" in output
    assert "100000" in output
