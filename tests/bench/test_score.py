"""A recorded run against a prediction: terms, times, mini-batch and staleness, and what cannot be scored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import typer
from sprint.bench import commands_calibrate, score_runs
from sprint.bench.machine_file import read_machine, save_machine
from sprint.bench.outcome import GPU_TERMS, UPDATE_TERMS, Distribution
from sprint.bench.score import errors, plain, read_run, score
from sprint.bench.score_runs import Scored, calmly, table
from sprint.engine.errors import UsageError
from typer.testing import CliRunner

RECORDED = Path(__file__).parent / "data" / "run"  # 300 updates of two workers, written by sprint train


@pytest.fixture
def record():
    return json.loads((RECORDED / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.fixture
def copy(tmp_path):
    """A copy of the run's folder whose config.json can be spoilt: change(key=value) within "config" or "job"."""
    folder = tmp_path / "run"
    shutil.copytree(RECORDED, folder)

    def change(part, **values):
        facts = json.loads((folder / "config.json").read_text())
        facts[part] |= values
        (folder / "config.json").write_text(json.dumps(facts))
        return folder

    return change


def test_a_run_is_read_with_its_configuration():
    run = read_run(RECORDED)
    assert (run.config.nodes, run.config.devices, run.config.subbatch) == (1, 2, 2)
    assert (run.config.images, run.config.min_gradients, run.config.ranks_per_host) == (4000, 0, 1)
    assert run.spec.parameter_count == 1_595_850
    assert run.images_per_s == pytest.approx(53.855, abs=1e-3)


def test_the_terms_are_those_of_the_telemetry(toy, record):
    _, seen = score(read_run(RECORDED), toy)
    assert seen.method == "measure"
    assert {name: seen.gpu_terms[name] for name in GPU_TERMS} == pytest.approx(
        {name: record["worker_ms"][name] / 1e3 for name in GPU_TERMS})
    barrier = record["update_ms"]["barrier"]
    expected = {name: (record["update_ms"][name] + barrier * (name == "allreduce")) / 1e3 for name in UPDATE_TERMS}
    assert dict(seen.update_terms) == pytest.approx(expected)
    assert seen.barrier == pytest.approx(barrier / 1e3)
    assert seen.t_gpu == pytest.approx(sum(record["worker_ms"].values()) / 1e3)


def test_epoch_and_update_go_by_the_clock_of_the_run(toy, record):
    _, seen = score(read_run(RECORDED), toy)
    assert seen.t_epoch == pytest.approx(4000 / 53.855267699461166)
    assert seen.t_update == pytest.approx(386 / 300 / 53.855267699461166)
    assert seen.t_update == pytest.approx(sum(record["update_ms"].values()) / 1e3, rel=0.05)


def test_the_distributions_are_the_histograms(toy):
    _, seen = score(read_run(RECORDED), toy)
    np.testing.assert_array_equal(seen.minibatch.values, [0, 2, 4])
    np.testing.assert_allclose(seen.minibatch.probabilities, np.array([170, 67, 63]) / 300)
    assert seen.staleness.mean == pytest.approx(3.5958549)


def test_wide_bins_count_at_their_middle(copy, toy, record):
    folder = copy("config")
    record["minibatch_histogram"] = {"width": 4, "counts": [1, 0, 3], "mean": 7.0, "largest": 10}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    _, seen = score(read_run(folder), toy)
    assert (seen.minibatch.values.tolist(), seen.minibatch.probabilities.tolist()) == ([1, 9], [0.25, 0.75])


def test_errors_are_of_everything_against_the_measurement(toy):
    predicted, seen = score(read_run(RECORDED), toy)
    found = errors(predicted, seen)
    assert len(found) == 16 + 3 + 4
    assert found["t_epoch"] == pytest.approx(predicted.t_epoch / seen.t_epoch - 1)
    assert found["gpu.fetch_weights"] == pytest.approx(
        predicted.gpu_terms["fetch_weights"] / seen.gpu_terms["fetch_weights"] - 1)
    common = sum(min(p, dict(zip(seen.minibatch.values, seen.minibatch.probabilities, strict=True)).get(v, 0))
                 for v, p in zip(predicted.minibatch.values, predicted.minibatch.probabilities, strict=True))
    assert found["minibatch_distribution"] == pytest.approx(1 - common)
    assert errors(seen, seen) == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-12)
    assert json.loads(json.dumps(plain(predicted, seen)))["errors"]["t_gpu"] == pytest.approx(found["t_gpu"])


def test_overlap_is_one_with_itself_and_nothing_with_what_is_elsewhere():
    one, other = (Distribution(np.array(values), np.array([0.25, 0.75])) for values in ([2, 4], [4, 8]))
    assert one.overlap(one) == 1
    assert one.overlap(other) == pytest.approx(0.25)
    assert one.overlap(Distribution(np.array([3]), np.array([1.0]))) == 0


def test_a_run_unlike_the_machine_is_warned_of(copy, toy_data):
    toy_data["device"]["kind"], toy_data["threads"], toy_data["conv"] = "host", 2, "implicit"
    toy_data["gemm"]["implicit"] = toy_data["gemm"]["sgemm"]
    machine = read_machine(toy_data, "toy.json")
    predicted, _ = score(read_run(copy("config", warmup_sync=3)), machine)
    text = " ".join(predicted.warnings)
    for words in ("ran as auto, the machine has implicit", "had 1 threads, those of the machine have 2", "bounded"):
        assert words in text
    toy_data["device"]["kind"] = "cuda"
    predicted, _ = score(read_run(RECORDED), read_machine(toy_data, "toy.json"))
    assert "the run was on host, the machine has cuda devices" in predicted.warnings


@pytest.mark.parametrize(("part", "values", "message"), [
    ("config", {"algorithm": "sync", "min_gradients": 1}, "expected one with --algorithm sprint, got sync"),
    ("job", {"layout": [{"rank": 0, "workers": 2, "subbatch": 2}, {"rank": 1, "workers": 1, "subbatch": 2}]},
     "expected as many workers and images on every rank"),
])
def test_runs_that_the_model_is_not_about_are_refused(copy, part, values, message):
    with pytest.raises(UsageError, match=f"^run: {message}"):
        read_run(copy(part, **values))


def test_folders_without_a_finished_run_are_refused(copy, tmp_path):
    with pytest.raises(UsageError, match=r"^run: expected a run folder with a config\.json, got "):
        read_run(tmp_path)
    folder = copy("config")
    (folder / "metrics.jsonl").write_text('{"step": 1, "epoch": 0.1, "loss": 2.0}\n')
    with pytest.raises(UsageError, match=r"^run: expected a finished run, got "):
        read_run(folder)


def test_the_command_prints_draws_and_writes(tmp_path, toy, monkeypatch):
    app = typer.Typer()
    app.command()(commands_calibrate.score)
    save_machine(toy, tmp_path / "toy.json")
    words = [str(RECORDED), "--machine", str(tmp_path / "toy.json"), "--json", str(tmp_path / "s.json"), "--plot",
             str(tmp_path / "s.png")]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    if result.exception:
        raise result.exception
    for word in ("predicted and measured", "LockWeights_G", "UpdateWeights", "T_Epoch", "overlap with measured"):
        assert word in result.output
    assert set(json.loads((tmp_path / "s.json").read_text())) == {"predict", "measure", "errors"}
    assert (tmp_path / "s.png").stat().st_size > 10_000


def outcome(epoch, batch, age):
    return {"t_epoch": epoch, "minibatch": {"mean": batch}, "staleness": {"mean": age}}


def test_the_table_says_which_limit_is_missed_and_by_how_much():
    rows = [Scored("lenet", 1, 2, 4, outcome(104.0, 9.0, 1.1), outcome(100.0, 10.0, 1.0)),
            Scored("lenet", 2, 2, 4, outcome(50.0, 9.5, 2.0), outcome(50.0, 10.0, 2.0))]
    text = table(rows, "measured")
    assert "| lenet | 1 x 2 x 4 | 1.73 min / 1.67 min (+4.0%) | 9.00 / 10.00 (-10.0%) | 1.10 / 1.00 (+10.0%) |" in text
    assert "| 2.0% (limit 5%) | 7.5% (limit 9%) | 5.0% (limit 19%) |" in text
    rows[1] = Scored("lenet", 2, 2, 4, outcome(70.0, 9.5, 2.0), outcome(50.0, 10.0, 2.0))
    assert "22.0% (limit 5%, missed)" in table(rows, "measured")


def test_a_disturbed_run_is_made_again_but_not_for_ever(monkeypatch):
    shares = iter([0.5, 0.3, 0.01, *[0.6] * score_runs.TRIES])
    monkeypatch.setattr(score_runs, "others_share", lambda make: make() or next(shares))
    made: list[int] = []
    assert calmly(lambda: made.append(1)) == 0.01
    assert len(made) == 3
    assert calmly(lambda: made.append(1)) == 0.6
    assert len(made) == 3 + score_runs.TRIES
