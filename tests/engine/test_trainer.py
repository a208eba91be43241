"""Training as a whole, on small nets: what it writes, how it goes on, how it refuses."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sprint.engine import checkpoint, trainer
from sprint.engine.config import TrainConfig
from sprint.engine.errors import UsageError
from sprint.engine.evaluate import Score, evaluate, evaluate_checkpoint
from sprint.engine.interrupt import Interrupt
from sprint.engine.layers import Conv2D, Dense, Dropout, MaxPool2D, NetSpec, ReLU, SoftmaxCrossEntropy
from sprint.engine.meter import Meter
from sprint.engine.report import Report
from sprint.engine.runs import RunFolder
from sprint.engine.session import open_session

# 40 training images in sub-batches of 6: 7 steps an epoch, the last one of 4 images
SMALL = TrainConfig("cnn-a", data="synthetic", classes=7, limit=40, image_size=12, width=0.1, subbatch=6, lr=0.02,
                    conv_algo="explicit", device="host", device_threads=1, log_every=3)


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    """Curves cost more than these runs; one test below has them."""
    if "folder" not in request.node.name:
        monkeypatch.setattr("sprint.engine.curves.curves", lambda *_arguments: b"")


class Lines(Report):
    """A report that keeps its lines."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def line(self, text):
        self.lines.append(text)

    @property
    def text(self):
        return "\n".join(self.lines)


def run(path, report=None, given=None, **options):
    """Train SMALL with other options into `path`; returns (summary, records)."""
    config = replace(SMALL, out=str(path), **options)
    summary = trainer.train(config, report or Lines(), given)
    return summary, RunFolder(Path(path)).metrics()


def last(path):
    return checkpoint.load(checkpoint.find(path))


def assert_same_state(a, b):
    for kind in ("weights", "optimizer"):
        left, right = getattr(a, kind), getattr(b, kind)
        assert left.keys() == right.keys()
        for name in left:
            assert left[name].tobytes() == right[name].tobytes(), name
    assert (a.step, a.epoch, a.worker) == (b.step, b.epoch, b.worker)


def stop_after(monkeypatch, step):
    """Ctrl-C comes while step number `step` is being made."""
    advance = trainer.Trainer.advance

    def advance_and_interrupt(self, lr):
        advance(self, lr)
        if self.step == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(trainer.Trainer, "advance", advance_and_interrupt)


# ---- what a run leaves ------------------------------------------------------------------------------------------


def test_a_run_leaves_its_whole_folder(tmp_path):
    report = Lines()
    summary, records = run(tmp_path, report, epochs=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoints", "config.json", "curves.png", "metrics.jsonl", "summary.json"]
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert [r["step"] for r in records] == [1, 3, 6, 7, 9, 12, 14]
    for r in records:
        assert set(r) >= {"step", "epoch", "loss", "lr", "images_per_s"} and r["images_per_s"] > 0
        assert ("top1" in r) == (r["step"] in (7, 14))
    assert [r["epoch"] for r in records if "top1" in r] == [1.0, 2.0]
    for key in ("loss", "top1", "top5", "images_per_s", "ranks", "planned_peak_bytes", "peak_bytes"):
        assert summary[key] > 0 or key == "top1"
    assert (summary["steps"], summary["epochs"], summary["ranks"], summary["test_images"]) == (14, 2.0, 1, 40)
    assert (summary["loss"], summary["top1"]) == (records[-1]["test_loss"], records[-1]["top1"])
    for word in ("device   host:0 (", "net      cnn-a", "made from seed 0", "planned peak", "mean over the sub-batch",
                 "reconstruction (see README)", "done     loss"):
        assert word in report.text
    assert report.lines.index(next(s for s in report.lines if "planned peak" in s)) < report.lines.index(
        next(s for s in report.lines if s.startswith("step 1/14")))


def test_config_json_has_what_the_defaults_came_to(tmp_path):
    run(tmp_path, steps=1, image_size=None, net="lenet", width=0.1, data="digits", classes=None)
    facts = json.loads((tmp_path / "config.json").read_text())
    effective = TrainConfig.from_json(facts["config"])
    assert (effective.image_size, effective.classes, effective.steps) == (28, 10, 1)
    assert (effective.device, effective.device_threads, effective.out) == ("host:0", 1, str(tmp_path))
    assert facts["environment"]["device"].startswith("host:0")


def test_steps_beat_epochs_and_the_schedule_ends_with_the_run(tmp_path):
    summary, records = run(tmp_path, steps=10, epochs=1, log_every=1, schedule="warmup:3+cosine")
    assert summary["steps"] == 10 and summary["epochs"] == pytest.approx(1 + 18 / 40)
    assert len(records) == 10 and [r["step"] for r in records if "top1" in r] == [7, 10]
    epochs = [0, 6, 12, 18, 24, 30, 36, 40, 46, 52]
    expected = [0.02 * min(1, (i + 1) / 3) * 0.5 * (1 + math.cos(math.pi * (e / 40) / (10 / 7)))
                for i, e in enumerate(epochs)]
    np.testing.assert_allclose([r["lr"] for r in records], expected, rtol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_first_loss_is_about_log_classes(tmp_path, seed):
    _, records = run(tmp_path, image_size=44, width=0.25, classes=1000, subbatch=1, steps=1, seed=seed)
    assert records[0]["loss"] == pytest.approx(math.log(1000), rel=0.05)


def test_it_learns(tmp_path):
    summary, records = run(tmp_path, net="lenet", image_size=16, width=0.4, data="digits", classes=None, limit=240,
                           subbatch=12, epochs=8, lr=0.005)
    assert summary["top1"] > 0.7 and summary["loss"] < 1.0 < records[0]["loss"]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    losses = [[r["loss"] for r in run(tmp_path / str(i), steps=9, augment=True, seed=seed)[1]]
              for i, seed in enumerate((3, 3, 4))]
    assert losses[0] == losses[1] != losses[2]
    assert_same_state(last(tmp_path / "0"), last(tmp_path / "1"))


def test_augmenting_changes_the_training_images_only(tmp_path):
    plain, deformed = (run(tmp_path / str(a), steps=7, lr=1e-30, weight_decay=0, augment=a) for a in (False, True))
    assert plain[1][0]["loss"] != deformed[1][0]["loss"]
    assert plain[0]["loss"] == deformed[0]["loss"]


# ---- evaluation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subbatch", [1, 6, 40, 64])
def test_every_test_image_counts_once_whatever_the_sub_batch(subbatch):
    session = open_session(replace(SMALL, subbatch=subbatch))
    score = evaluate(session.network, session.dataset.test, session.feeder())
    logits, labels = naive_logits(session)
    exact = logits.astype(np.float64)
    losses = np.log(np.exp(exact - exact.max(1, keepdims=True)).sum(1)) + exact.max(1) - exact[range(40), labels]
    ranks = (exact > exact[range(40), labels][:, None]).sum(1)
    assert score.samples == 40
    assert score.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert (score.top1, score.top5) == ((ranks < 1).mean(), (ranks < 5).mean())


def naive_logits(session):
    """Logits (40, K) of the test images one by one, normalised in NumPy."""
    images, labels = session.dataset.test.read(np.arange(40))
    x = (images / np.float32(255) - session.dataset.mean) / session.dataset.std
    x = x.astype(np.float32).transpose(0, 3, 1, 2)
    logits = [session.network.forward(np.ascontiguousarray(one[:, None])).copy()[:, 0] for one in x]
    return np.stack(logits), labels


def test_the_parts_of_ranks_add_up():
    session = open_session(SMALL)
    parts = [evaluate(session.network, session.dataset.test, session.feeder(), rank=r, size=3) for r in range(3)]
    whole = evaluate(session.network, session.dataset.test, session.feeder())
    total = sum(parts, Score())
    assert (total.samples, total.top1, total.top5) == (40, whole.top1, whole.top5)
    assert total.loss == pytest.approx(whole.loss, rel=1e-6)


def test_synthetic_images_are_tested_no_more_than_trained_on(tmp_path):
    assert run(tmp_path, steps=2)[0]["test_images"] == 12


# ---- going on -----------------------------------------------------------------------------------------------


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


def draw_folders(root, names):
    """Six images of each class, told apart by their brightness, for training and for testing."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in names:
            (root / part / name).mkdir(parents=True)
            for i in range(6):
                level = {"a": 20, "b": 120, "c": 220}[name] + rng.integers(-9, 9, (12, 12, 3))
                Image.fromarray(level.astype(np.uint8)).save(root / part / name / f"{i}.png")


def test_labels_keep_their_meaning_when_a_class_is_missing(tmp_path):
    draw_folders(tmp_path / "all", "abc")
    draw_folders(tmp_path / "few", "ac")
    summary, _ = run(tmp_path / "run", data="folder", data_dir=str(tmp_path / "all"), classes=None, limit=None,
                     epochs=30, lr=0.05)
    assert summary["top1"] == 1.0
    assert last(tmp_path / "run").class_names == ["a", "b", "c"]
    few = evaluate_checkpoint(str(tmp_path / "run"), {"data_dir": str(tmp_path / "few")})
    assert (few["top1"], few["test_images"]) == (1.0, 12)  # with b dropped from the list, every c would be taken for it


def test_images_that_cannot_be_read_stop_the_run_or_are_skipped_and_listed(tmp_path):
    draw_folders(tmp_path / "images", "abc")
    broken = [tmp_path / "images" / part / "b" / "3.png" for part in ("train", "val")]
    for path in broken:
        path.write_bytes(path.read_bytes()[:60])
    options = {"data": "folder", "data_dir": str(tmp_path / "images"), "classes": None, "limit": None, "epochs": 1}
    with pytest.raises(ValueError, match=str(broken[0])):
        run(tmp_path / "strict", **options)
    report = Lines()
    summary, _ = run(tmp_path / "run", report, on_bad_image="skip", **options)
    assert (summary["bad_images"], summary["test_images"], summary["epochs"]) == (2, 17, 1.0)
    assert all(any(line.startswith(f"skipped  {path}: ") for line in report.lines) for path in broken)


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


def test_the_header_says_what_equal_bytes_need_where_algorithms_are_measured(tmp_path):
    def said(**changes):
        lines = Lines()
        trainer.train(replace(SMALL, steps=1, out=str(tmp_path / "r"), **changes), lines)
        return [line for line in lines.lines if line.startswith("conv ")]

    measured, = said(conv_algo="auto")
    assert "measured once on this machine and cached" in measured
    assert "need --conv-algo implicit, or --resume" in measured
    kept, = said(conv_algo="auto", resume=str(tmp_path / "r"))
    assert "that the checkpoint names" in kept
    assert said(conv_algo="explicit") == said(net="mlp", conv_algo="auto") == []


def test_tf32_is_refused_where_there_is_none(tmp_path):
    with pytest.raises(UsageError, match=r"^math: expected fp32 on host:0, got tf32$"):
        run(tmp_path, math="tf32", steps=1)


def test_a_checkpoint_is_scored_as_the_run_scored_it(tmp_path):
    summary, _ = run(tmp_path, epochs=1)
    result = evaluate_checkpoint(str(tmp_path), {"subbatch": 40})
    assert result["loss"] == pytest.approx(summary["loss"], rel=1e-6)
    assert [result[k] for k in ("top1", "top5", "test_images", "step")] == [summary["top1"], summary["top5"], 40, 7]


# ---- refusing and stopping ------------------------------------------------------------------------------------


def test_a_run_that_cannot_fit_is_refused_with_the_sub_batch_that_would(tmp_path):
    big = replace(SMALL, image_size=396, width=1.0, subbatch=10**6, out=str(tmp_path / "run"))
    pattern = r"^memory: expected a plan within the .* got .* --subbatch \d+ would fit$"
    with pytest.raises(UsageError, match=pattern) as error:
        trainer.train(big, Lines())
    largest = int(str(error.value).split()[-3])
    assert 1 <= largest < 10**5 and not (tmp_path / "run").exists()
    # with a margin for what other processes take meanwhile
    open_session(replace(big, subbatch=max(1, int(largest * 0.8))))
    with pytest.raises(UsageError):
        open_session(replace(big, subbatch=int(largest * 1.3) + 1))


def test_a_net_too_large_for_one_image_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"--subbatch 6: not even one image fits"):
        trainer.train(replace(SMALL, net="mlp", width=100.0, out=str(tmp_path / "run")), Lines())


@pytest.mark.parametrize("option, value", [
    ("net", "alexnet"), ("data", "imagenet"), ("data", "mnist"), ("image_size", 2), ("data_dir", "/nowhere"),
])
def test_what_cannot_be_opened_is_refused_before_a_folder_is_made(tmp_path, option, value):
    data = {"data": "cifar10", "classes": None} if option == "data_dir" else {}
    with pytest.raises(UsageError) as error:
        trainer.train(replace(SMALL, out=str(tmp_path / "run"), **{**data, option: value}), Lines())
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    run(tmp_path, steps=2)
    with pytest.raises(RuntimeError, match=r"^train: expected a finite loss, got (nan|inf) in step \d+ at learning"):
        run(tmp_path, steps=20, lr=1e25, resume=str(tmp_path), schedule="constant")
    assert last(tmp_path).step == 2


def test_an_interrupt_during_the_evaluation_leaves_it_for_later(tmp_path, monkeypatch):
    def interrupted(*arguments, stop, **options):
        signal.raise_signal(signal.SIGTERM)
        return evaluate(*arguments, stop=stop, **options)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "evaluate", interrupted)
        assert run(tmp_path, steps=3)[0] == signal.SIGTERM
    assert last(tmp_path).step == 3
    assert run(tmp_path, steps=3, resume="auto")[0]["steps"] == 3


@pytest.mark.parametrize("first, second, raised, code", [
    (signal.SIGTERM, signal.SIGINT, KeyboardInterrupt, None), (signal.SIGINT, signal.SIGTERM, SystemExit, 143)])
def test_the_second_signal_stops_at_once_and_the_handlers_are_put_back(first, second, raised, code):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(raised) as error, Interrupt() as interrupt:
        assert not interrupt.asked
        signal.raise_signal(first)
        assert interrupt.asked and interrupt.number == first
        signal.raise_signal(second)
        pytest.fail("went on")
    assert getattr(error.value, "code", None) == code
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_long_epoch_is_saved_in_between(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    run(tmp_path, steps=3)
    assert [checkpoint.load(p).step for p in checkpoint.newest_first(tmp_path / "checkpoints")] == [3, 2, 1]


def test_a_quiet_report_says_nothing(tmp_path, capsys):
    trainer.train(replace(SMALL, steps=1, out=str(tmp_path)), Report(quiet=True))
    assert capsys.readouterr().out == ""


def test_the_meter_leaves_out_two_steps_and_weighs_by_samples():
    meter = Meter()
    assert meter.images_per_s == 0.0
    meter.add(6.0, 3, 30.0)
    meter.add(1.0, 1, 10.0)
    assert meter.images_per_s == pytest.approx(0.1) and meter.take() == (1.75, pytest.approx(0.1))
    meter.add(10.0, 4, 0.5)
    meter.add(6.0, 4, 1.5)
    assert meter.images_per_s == pytest.approx(4.0) and meter.take() == (2.0, pytest.approx(4.0))
