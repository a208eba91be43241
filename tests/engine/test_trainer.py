"""Training as a whole, on small nets: what it writes, and how it refuses and stops."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace

import numpy as np
import pytest
from small_runs import SMALL, Lines, assert_same_state, draw_folders, last, run
from sprint.engine import checkpoint, trainer
from sprint.engine.config import TrainConfig
from sprint.engine.errors import UsageError
from sprint.engine.evaluate import evaluate
from sprint.engine.report import Report
from sprint.engine.session import open_session

pytestmark = pytest.mark.usefixtures("undrawn")


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


def test_a_long_epoch_is_saved_in_between(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    run(tmp_path, steps=3)
    assert [checkpoint.load(p).step for p in checkpoint.newest_first(tmp_path / "checkpoints")] == [3, 2, 1]


def test_a_quiet_report_says_nothing(tmp_path, capsys):
    trainer.train(replace(SMALL, steps=1, out=str(tmp_path)), Report(quiet=True))
    assert capsys.readouterr().out == ""


# ---- refusing and stopping --------------------------------------------------------------------------------------


def test_tf32_is_refused_where_there_is_none(tmp_path):
    with pytest.raises(UsageError, match=r"^math: expected fp32 on host:0, got tf32$"):
        run(tmp_path, math="tf32", steps=1)


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
