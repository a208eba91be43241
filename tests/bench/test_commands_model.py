"""The sub-commands predict, plan and simulate from the outside."""

from __future__ import annotations

import json

import pytest
import typer
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
    (["predict", "lenet", *HERE, "--nodes", "0", "--subbatch", "1"], "nodes: expected a whole number >= 1, got 0"),
    (["predict", "lenet", *HERE, *ONE, "--plot", "x.bmp"], "plot: expected a file named .png"),
    (["predict", "lenet", *HERE, *ONE, "--json", "/none/x.json"], "json: expected a file that can be written, got"),
    (["plan", "lenet", *HERE, *ONE, "--tolerance", "much"], "tolerance: expected a part like"),
    (["plan", "lenet", *HERE, *ONE, "--memory", "-1"], "plan: memory_bytes: expected"),
    (["simulate", "lenet", *HERE, *ONE, "--slow", "x"], "slow: expected NODE:NUMBER, got 'x'"),
])
def test_bad_requests_are_usage_errors_of_one_line(app, words, message):
    with pytest.raises(UsageError) as error:
        run(app, *words)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_times_that_are_no_list_are_refused(app, tmp_path):
    (tmp_path / "t.json").write_text('{"a": 1}')
    with pytest.raises(UsageError, match=r"^times: expected a JSON list of seconds in "):
        run(app, "simulate", "lenet", *HERE, *ONE, "--times", str(tmp_path / "t.json"))
