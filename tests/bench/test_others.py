from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from sprint.bench import others
from sprint.bench.others import Watch, others_share, warn
from sprint.distributed.ranks import Single

SPIN = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.8: pass"]


def test_what_others_take_is_seen():
    with subprocess.Popen(SPIN):  # not waited for meanwhile, as if another had started it
        assert others_share(lambda: time.sleep(0.6)) * os.cpu_count() > 0.2


def test_what_one_starts_oneself_is_not_others(monkeypatch):
    """On a machine on which nobody else runs."""
    monkeypatch.setattr(others, "_busy_seconds", lambda: sum(os.times()[:4]))
    assert others_share(lambda: subprocess.run(SPIN, check=True, timeout=60)) == pytest.approx(0, abs=1e-3)


class Four(Single):
    """Two ranks on host a, two on host b: busy, own and all seconds of each."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.hosts = np.array(rows, float), ["a", "b", "a", "b"]

    def gather_all(self, values):
        assert len(values) == 3
        return self.rows


def test_ranks_of_a_host_are_no_others_and_the_busiest_host_counts():
    rows = [[5, 2, 10], [8, 2, 10], [5, 3, 10], [8, 3, 10]]
    assert Watch().share(Four(rows)) == pytest.approx(0.3)
    assert Watch().share(Four([[5, 5, 10], [6, 5, 10], [5, 0, 10], [6, 1, 10]])) == 0


def test_few_percent_are_not_worth_a_warning(capsys):
    warn(0.05)
    assert capsys.readouterr().err == ""
    warn(0.123)
    assert capsys.readouterr().err == (
        "warning: times are upper bounds: other programs took 12% of the processors meanwhile\n")
