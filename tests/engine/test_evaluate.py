from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_runs import SMALL, draw_folders, last, run
from sprint.engine.evaluate import Score, evaluate, evaluate_checkpoint
from sprint.engine.session import open_session

pytestmark = pytest.mark.usefixtures("undrawn")


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


def test_labels_keep_their_meaning_when_a_class_is_missing(tmp_path):
    draw_folders(tmp_path / "all", "abc")
    draw_folders(tmp_path / "few", "ac")
    summary, _ = run(tmp_path / "run", data="folder", data_dir=str(tmp_path / "all"), classes=None, limit=None,
                     epochs=30, lr=0.05)
    assert summary["top1"] == 1.0
    assert last(tmp_path / "run").class_names == ["a", "b", "c"]
    few = evaluate_checkpoint(str(tmp_path / "run"), {"data_dir": str(tmp_path / "few")})
    assert (few["top1"], few["test_images"]) == (1.0, 12)  # with b dropped from the list, every c would be taken for it


def test_a_checkpoint_is_scored_as_the_run_scored_it(tmp_path):
    summary, _ = run(tmp_path, epochs=1)
    result = evaluate_checkpoint(str(tmp_path), {"subbatch": 40})
    assert result["loss"] == pytest.approx(summary["loss"], rel=1e-6)
    assert [result[k] for k in ("top1", "top5", "test_images", "step")] == [summary["top1"], summary["top5"], 40, 7]
