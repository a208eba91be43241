from __future__ import annotations

import json

import pytest
from sprint.distributed.journal import Journal
from sprint.distributed.progress import Progress
from sprint.distributed.ranks import Single
from sprint.engine.report import Report
from sprint.engine.runs import RunFolder


def test_a_record_before_the_first_gradient_is_json(tmp_path, capsys):
    """At --min-gradients 0 the update thread need not wait for one: there is no loss yet."""
    folder = RunFolder.create(str(tmp_path), "mlp")
    journal = Journal(Single(), folder, Report(plain=True), 100, lambda *_at: 0.1, 1, Progress(), None)
    journal.go_on(lambda progress: False)
    journal.tick(Progress(version=1))
    journal.tick(Progress(version=2, samples=4, minibatch=4, gradients=1, loss_sum=6.0, loss=1.5))
    records = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "metrics.jsonl").open()]
    assert [(r["step"], r["loss"]) for r in records] == [(1, None), (2, 1.5)]
    assert "loss nan" in capsys.readouterr().out
