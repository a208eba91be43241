"""Runs that stop and go on: with the same bytes, with other options, from damaged files."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from small_runs import SMALL, Lines, assert_same_state, last, run, stop_after
from sprint.engine import checkpoint, trainer
from sprint.engine.config import TrainConfig
from sprint.engine.errors import UsageError
from sprint.engine.layers import Conv2D, Dense, Dropout, MaxPool2D, NetSpec, ReLU, SoftmaxCrossEntropy
from sprint.engine.runs import RunFolder

pytestmark = pytest.mark.usefixtures("undrawn")
DROPPING = NetSpec("cnn-a", (3, 12, 12), (
    Conv2D(9, (3, 2), (2, 1), (0, 1)), ReLU(), MaxPool2D((3, 2), (1, 2)), Dropout(0.3), Dense(16), ReLU(),
    Dropout(0.5), Dense(7), SoftmaxCrossEntropy()))


@pytest.mark.parametrize("optimizer, stop", [("momentum", 5), ("adagrad", 7), ("sgd", 8)])
def test_stopped_and_resumed_gives_the_bytes_of_an_uninterrupted_run(tmp_path, monkeypatch, optimizer, stop):
    monkeypatch.setattr("sprint.engine.session.build", lambda *_arguments: DROPPING)
    options = {"optimizer": optimizer, "steps": 10, "augment": True, "schedule": "warmup:4+cosine", "log_every": 1}
    _, expected = run(tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        report = Lines()
        assert run(tmp_path / "parts", report, **options)[0] == signal.SIGINT
    assert f"stopped  after step {stop}; go on with: sprint train cnn-a --resume {tmp_path}/parts" in report.text
    assert last(tmp_path / "parts").step == stop and not (tmp_path / "parts" / "summary.json").exists()
    summary, records = run(tmp_path / "parts", resume=str(tmp_path / "parts"), **options)
    assert summary["steps"] == 10
    assert_same_state(last(tmp_path / "whole"), last(tmp_path / "parts"))
    assert [(r["step"], r["loss"], r["lr"]) for r in records] == [(r["step"], r["loss"], r["lr"]) for r in expected]


def test_dropout_and_deforming_are_in_that_test(tmp_path, monkeypatch):
    """Without dropout, or with another seed of it, the bytes differ: the test above is not blind to it."""
    finals = []
    for rate in (0.3, 0.31):
        layers = tuple(Dropout(rate) if isinstance(layer, Dropout) else layer for layer in DROPPING.layers)
        monkeypatch.setattr("sprint.engine.session.build", lambda *_a, n=layers: replace(DROPPING, layers=n))
        run(tmp_path / str(rate), steps=3)
        finals.append(last(tmp_path / str(rate)).weights["fc2.w"].tobytes())
    assert finals[0] != finals[1]


def test_a_killed_run_goes_on_from_its_last_checkpoint_and_repeats_the_records_after_it(tmp_path, monkeypatch):
    def die(self, lr):
        if self.step == 12:
            raise SystemError("kill -9")
        advance(self, lr)

    _, expected = run(tmp_path / "whole", epochs=2, log_every=1)
    advance = trainer.Trainer.advance
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "advance", die)
        with pytest.raises(SystemError):
            run(tmp_path / "parts", epochs=2, log_every=1)
    assert len(RunFolder(tmp_path / "parts").metrics()) == 12 and last(tmp_path / "parts").step == 7
    _, records = run(tmp_path / "parts", resume="auto", epochs=2, log_every=1)
    assert [(r["step"], r["loss"]) for r in records] == [(r["step"], r["loss"]) for r in expected]


def test_auto_passes_over_damaged_checkpoints_and_says_so(tmp_path):
    run(tmp_path, epochs=3)
    paths = checkpoint.newest_first(tmp_path / "checkpoints")
    paths[0].write_bytes(paths[0].read_bytes()[:-5])
    paths[1].write_bytes(b"")
    report = Lines()
    summary, records = run(tmp_path, report, resume="auto", epochs=3)
    assert summary["steps"] == 21 and [r["step"] for r in records if "top1" in r] == [7, 14, 21]
    assert report.text.count("trying the one before") == 2 and str(paths[0]) in report.lines[0]
    assert f"resume   {paths[2]}: step 7, epoch 1.00" in report.lines
    assert checkpoint.load(checkpoint.find(tmp_path)).step == 21


def test_auto_starts_afresh_where_there_is_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in (None, "new"):
        report = Lines()
        assert trainer.train(replace(SMALL, out=out, steps=1, resume="auto"), report)["steps"] == 1
        assert "resume   no checkpoint to go on from: starting afresh" in report.lines
    report = Lines()  # and now there is one, in the newest runs/cnn-a-*
    assert trainer.train(replace(SMALL, out=None, steps=2, resume="auto"), report)["steps"] == 2
    assert [len(list(Path("runs").iterdir())), report.lines[0].endswith("step 1, epoch 0.15")] == [1, True]


def test_a_named_checkpoint_that_is_damaged_stops_the_run_in_one_line(tmp_path):
    run(tmp_path, steps=1)
    path = checkpoint.find(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"^checkpoint: expected a whole file, got a damaged one .*: {path}$"):
        run(tmp_path, resume=str(path), steps=2)


@pytest.mark.parametrize("change, named", [
    ({"subbatch": 5}, "--subbatch 6"), ({"net": "lenet", "image_size": 16}, "NET cnn-a"),
    ({"width": 0.2}, "--width 0.1"), ({"seed": 1}, "--seed 0"), ({"optimizer": "sgd"}, "--optimizer momentum"),
    ({"classes": 8}, "--classes 7"),
    ({"image_size": 13}, "--image-size 12"), ({"limit": 41}, "--limit 40"),
])
def test_what_the_saved_state_cannot_follow_is_refused_by_name(tmp_path, change, named):
    run(tmp_path, steps=1)
    with pytest.raises(UsageError) as error:
        run(tmp_path, steps=2, resume=str(tmp_path), **change)
    assert str(error.value).startswith(f"resume: expected {named} as in {tmp_path}") and "\n" not in str(error.value)
    assert last(tmp_path).step == 1  # and nothing was touched
    assert (tmp_path / "summary.json").exists()


def test_other_options_may_change_and_the_change_is_said(tmp_path):
    run(tmp_path, steps=2)
    report = Lines()
    summary, records = run(tmp_path, report, steps=4, resume=str(tmp_path), lr=0.5, schedule="constant", augment=True,
                           workspace=50)
    assert summary["steps"] == 4 and records[-1]["lr"] == 0.5
    for line in ("--lr was 0.02, is now 0.5", "--schedule was cosine, is now constant", "--steps was 2, is now 4",
                 "--augment was off, is now on", "--workspace was not set, is now 50"):
        assert f"resume   {line}" in report.lines


def test_options_not_given_come_from_the_checkpoint(tmp_path):
    run(tmp_path, steps=2, momentum=0.5)
    config = TrainConfig("cnn-a", steps=3, resume=str(tmp_path))
    assert trainer.train(config, Lines(), given={"net", "steps", "resume"})["steps"] == 3
    saved = last(tmp_path)
    assert (saved.step, saved.config.momentum, saved.config.width, saved.config.data) == (3, 0.5, 0.1, "synthetic")


def test_resuming_into_another_folder_leaves_the_first_alone(tmp_path):
    run(tmp_path / "a", steps=2)
    before = (tmp_path / "a" / "metrics.jsonl").read_text()
    summary, records = run(tmp_path / "b", steps=4, resume=str(tmp_path / "a"))
    assert summary["steps"] == 4 and [r["step"] for r in records] == [3, 4]
    assert (tmp_path / "a" / "metrics.jsonl").read_text() == before and last(tmp_path / "a").step == 2


def test_going_back_to_an_older_checkpoint_puts_the_later_ones_aside(tmp_path):
    run(tmp_path, epochs=2)
    older = checkpoint.newest_first(tmp_path / "checkpoints")[1]
    run(tmp_path, steps=9, resume=str(older))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["latest", "step-000000007.safetensors", "step-000000009.safetensors", "step-000000014.old"]


def test_a_finished_run_is_only_scored_again(tmp_path):
    first, records = run(tmp_path, steps=3)
    report = Lines()
    again, same = run(tmp_path, report, steps=3, resume=str(tmp_path))
    assert "resume   nothing left to do: step 3 of 3; a larger --steps goes on" in report.lines
    assert again == first == json.loads((tmp_path / "summary.json").read_text())  # with its images_per_s and seconds
    assert same == records


def test_what_is_no_summary_of_this_step_is_not_kept(tmp_path):
    run(tmp_path, epochs=1)
    report = Lines()
    for content in ("", "[]", '{"steps": 6, "images_per_s": 5.0}'):
        (tmp_path / "summary.json").write_text(content)
        summary, _ = run(tmp_path, report, epochs=1, resume=str(tmp_path))
        assert (summary["steps"], summary["images_per_s"]) == (7, 0.0)
    assert "resume   nothing left to do: epoch 1.00 of 1; a larger --epochs goes on" in report.lines


def test_a_resumed_run_keeps_the_convolution_algorithms_of_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer.CHOICES, "_used", {})
    run(tmp_path, steps=1, conv_algo="auto")
    saved = last(tmp_path)
    assert len(saved.choices) >= 3
    others = {key: "implicit" if algo == "explicit" else "explicit" for key, algo in saved.choices.items()}
    checkpoint.save(checkpoint.find(tmp_path), replace(saved, choices=others))
    monkeypatch.setattr(trainer.CHOICES, "_used", {})
    run(tmp_path, steps=2, resume=str(tmp_path))
    assert {key: last(tmp_path).choices[key] for key in others} == others
