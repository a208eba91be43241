from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
from analytic import Counting
from sprint.distributed.ranks import Single
from sprint.distributed.watch import LOCAL, RANKS, DrilledWorker, Drills, Fault, Watch, parse_fault


@pytest.mark.parametrize("text, fault", [
    ("kill-rank=1@update=50", Fault("kill-rank", 1, 50)),
    ("delay-rank=0@update=7,seconds=2.5", Fault("delay-rank", 0, 7, 0, 2.5)),
    ("nan-grad=3@update=1,worker=2", Fault("nan-grad", 3, 1, 2)),
    ("raise-worker=0@update=9,worker=1,seconds=1", Fault("raise-worker", 0, 9, 1, 1.0)),
])
def test_drills_are_read(text, fault):
    assert parse_fault(text) == fault


@pytest.mark.parametrize("text", ["", "kill-rank=1", "kill-rank=1@update=", "kill-rank=-1@update=2",
                                  "eat-rank=1@update=2", "kill-rank=1@update=2,worker=x",
                                  "kill-rank=1@update=2;seconds=3"])
def test_other_drills_are_refused(text):
    with pytest.raises(ValueError, match="inject: expected KIND=RANK@update=U"):
        parse_fault(text)


def test_a_drill_is_for_one_rank_and_worker_and_is_done_once():
    drills = Drills([Fault("raise-worker", 1, 5, worker=1), Fault("raise-worker", 0, 5)], rank=1)
    now = [4]
    first, second = (DrilledWorker(Counting(3, 0), drills, index, lambda: now[0]) for index in (0, 1))
    assert first.n_params == 3 and second.compute() == (1.5, 3)
    now[0] = 6
    first.compute()
    with pytest.raises(RuntimeError, match="injected: worker 1 raises at update 6"):
        second.compute()
    second.compute()


def test_a_spoilt_gradient_is_one_element():
    worker = DrilledWorker(Counting(3, 0), Drills([Fault("nan-grad", 0, 1)], 0), 0, lambda: 1)
    buffer = np.zeros(3, np.float32)
    worker.deposit(buffer, True, -1.0)
    assert np.isnan(buffer).tolist() == [True, False, False]


def test_delay_lasts_as_long_as_asked():
    began = time.monotonic()
    drills = Drills([Fault("delay-rank", 0, 2, seconds=0.2)], 0)
    drills.before_exchange(1)
    assert time.monotonic() - began < 0.1
    drills.before_exchange(2)
    assert 0.2 <= time.monotonic() - began < 2


def test_watch_names_who_is_late_and_not_who_waits():
    watch = Watch(Single(), 0.05)
    worker, update = watch.pulse("worker 0"), watch.pulse("update")
    worker.enter("compute gradient", 8)
    update.enter("wait for gradients", 8, LOCAL)
    watch.check()
    time.sleep(0.08)
    with pytest.raises(RuntimeError, match=r"stalled: rank 0 \(host .*\): thread worker 0: compute gradient, update 8, "
                                           r"for 0\.\d s \(limit 0.05 s\)$"):
        watch.check()
    worker.enter("deposit gradient", 8)
    watch.check()
    Watch(Single(), 0.0).check()


def test_who_waits_for_other_ranks_says_so_first_and_then_calls_the_roll(monkeypatch):
    class Four(Single):
        said = ()

        def here(self, call):
            self.said += (call,)

        def absent(self, call):
            return ["rank 3 (host n9)"]

    now = [100.0]
    monkeypatch.setattr("sprint.distributed.watch.time", SimpleNamespace(monotonic=lambda: now[0]))
    comm = Four()
    watch = Watch(comm, 0.2)
    pulse = watch.pulse("update")
    pulse.enter("allreduce", 8, RANKS)
    watch.check()
    assert comm.said == ()
    now[0] += 0.12
    watch.check()
    watch.check()
    assert comm.said == (8,)
    now[0] += 0.12
    with pytest.raises(RuntimeError, match=r"stalled: rank 3 \(host n9\) does not answer the roll call of rank 0 .*"
                                           r"thread update: allreduce, update 8"):
        watch.check()


def test_threads_that_all_wait_for_each_other_are_a_stall():
    watch = Watch(Single(), 0.03)
    for name in ("update", "worker 0"):
        watch.pulse(name).enter("wait for the other", 3, LOCAL)
    watch.check()
    time.sleep(0.08)
    with pytest.raises(RuntimeError, match="all threads wait for each other: update: wait for the other, worker 0"):
        watch.check()
