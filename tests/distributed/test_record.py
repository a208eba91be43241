from __future__ import annotations

import numpy as np
import pytest
from analytic import Regression, problem
from job import share_of
from sprint.distributed.data_parallel import data_parallel
from sprint.distributed.options import Options
from sprint.distributed.ranks import Single
from sprint.distributed.record import Replay
from sprint.distributed.sprint import Sprint

ROWS, TARGETS, _ = problem()


def options(form="sum", **more):
    return Options(rate=lambda used, _: 0.003 if used < 200 else 0.002, momentum=0.8, form=form, ordered=True,
                   check_every=7, stall_s=10.0, **more)


def start():
    return np.linspace(-0.5, 0.5, 37, dtype=np.float32)


@pytest.mark.parametrize("make, form", [(Sprint, "sum"), (Sprint, "mean"), (data_parallel, "sum")])
def test_replay_of_one_rank_is_equal_bit_for_bit(tmp_path, make, form):
    rules = options(form, staleness_rate=True)
    job = make(Single(), [share_of(ROWS, TARGETS, t, 0.0005) for t in range(3)], start(), rules,
               config_hash="0123456789ab", record=tmp_path)
    for goal in (900, 1500):  # two segments, one record
        job.start(goal)
        job.join()
    job.close()
    replay = Replay(tmp_path, lambda rank, t: share_of(ROWS, TARGETS, t), start(), rules)
    assert replay.run().tobytes() == job.weights.snapshot()[0].tobytes()
    assert replay.version == job.progress.version
    assert len(replay._kept) <= 2 + job.telemetry.staleness.largest  # versions nobody needs are let go
    replay.close()


def test_replay_of_two_ranks_is_equal_bit_for_bit(mpirun, tmp_path):
    done = mpirun(2, "job.py", "--out", tmp_path, "--kind", "regression", "--workers", 2, "--samples", 2500, "--delay",
                  0.001, "--rate", 0.0005, "--momentum", 0.9, "--record")
    assert done.code == 0, done.err
    rules = Options(rate=lambda samples, version: 0.0005, momentum=0.9, ordered=True)
    replay = Replay(tmp_path, lambda rank, t: share_of(ROWS, TARGETS, 2 * rank + t), np.zeros(37, np.float32), rules)
    assert replay.run().tobytes() == np.load(tmp_path / "final-rank1.npz")["weights"].tobytes()


def recorded(tmp_path):
    worker = Regression(ROWS, TARGETS, [np.arange(8)], 0.001)
    job = Sprint(Single(), [worker], start(), options(), config_hash="0123456789ab", record=tmp_path)
    job.start(200)
    job.join()
    job.close()
    return tmp_path / "record-rank0.jsonl"


def test_other_data_are_found_at_the_first_compared_version(tmp_path):
    recorded(tmp_path)
    replay = Replay(tmp_path, lambda rank, t: Regression(ROWS, TARGETS, [np.arange(8, 16)]), start(), options())
    with pytest.raises(ValueError, match=r"replay: version 6: expected CRC-32 [0-9a-f]{8} as on rank 0, got"):
        replay.run()


def test_a_gap_and_a_missing_record_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected record-rank"):
        Replay(tmp_path, lambda rank, t: None, start(), options())
    path = recorded(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if '"update": 3,' not in line) + '\n{"upd')
    replay = Replay(tmp_path, lambda rank, t: Regression(ROWS, TARGETS, [np.arange(8)]), start(), options())
    with pytest.raises(ValueError, match="expected update 3 in the record of rank 0, got none"):
        replay.run()
