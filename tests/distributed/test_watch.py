from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
from analytic import Counting
from sprint.distributed.pulse import LOCAL, RANKS, Pulse
from sprint.distributed.ranks import Single, Stalled
from sprint.distributed.watch import DrilledWorker, Drills, Fault, Watch, parse_fault


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


def pass_time(clock, seconds, look):
    """Let `seconds` pass; look() now and then, as the watch does."""
    end = clock.now + seconds
    while clock.now < end:
        look()
        clock.now = min(end, clock.now + 2)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets, and processor time."""
    times = SimpleNamespace(now=100.0, used=3.0)
    fake = SimpleNamespace(monotonic=lambda: times.now, process_time=lambda: times.used, thread_time=lambda: 0.0)
    monkeypatch.setattr("sprint.distributed.pulse.time", fake)
    monkeypatch.setattr("sprint.distributed.watch.time", fake)
    return times


def test_watch_names_who_is_late_and_not_who_waits(clock):
    watch = Watch(Single(), 10.0)
    worker, update = watch.pulse("worker 0"), watch.pulse("update")
    worker.enter("compute gradient", 8)
    update.enter("wait for gradients", 8, LOCAL)
    pass_time(clock, 10, watch.check)
    clock.now += 0.5
    with pytest.raises(Stalled, match=r"^stalled: rank 0 \(host .*\): thread worker 0: compute gradient, update 8, "
                                      r"for 10.5 s \(limit 10 s\)$"):
        watch.check()
    worker.enter("deposit gradient", 8)
    watch.check()
    Watch(Single(), 0.0).check()


class Four(Single):
    """Rank `own` of four; `quiet` is what it hears: seconds since a sign of life, seconds waited at that moment."""

    def __init__(self, own, quiet):
        super().__init__()
        self.rank, self.size, self.ids, self.hosts = own, 4, [0, 1, 2, 3], ["n6", "n7", "n8", "n9"]
        self.quiet, self.said = quiet, []

    def beat(self, every_s, waited_s):
        self.said.append((every_s, waited_s))

    def heard(self):
        return self.quiet


WORKS, WAITS, SILENT = (1.0, 0.0), (1.0, 9.0), (11.0, 0.0)


@pytest.mark.parametrize("own, patience_s", [(1, 11), (2, 16)])
def test_who_waits_for_a_silent_rank_names_it_the_first_of_them_first(clock, own, patience_s):
    comm = Four(own, [WORKS, WAITS, WAITS, SILENT])
    watch = Watch(comm, 10.0)
    watch.pulse("update").enter("allreduce", 8, RANKS)
    pass_time(clock, patience_s - 0.1, watch.check)
    watch.check()
    assert comm.said[-1] == (1.25, pytest.approx(patience_s - 0.1))
    clock.now += 0.2
    with pytest.raises(Stalled, match=rf"^stalled: rank 3 \(host n9\) gives no sign of life to rank {own} \(host .*\): "
                                      rf"thread update: allreduce, update 8, for {patience_s}.1 s \(limit 10 s\)$"):
        watch.check()


def test_the_second_rank_speaks_where_the_first_is_silent(clock):
    watch = Watch(Four(1, [SILENT, WAITS, WAITS, WAITS]), 10.0)
    watch.pulse("update").enter("allreduce", 8, RANKS)
    pass_time(clock, 11.1, watch.check)
    with pytest.raises(Stalled, match=r"rank 0 \(host n6\) gives no sign of life to rank 1"):
        watch.check()


def test_ranks_that_live_are_waited_for_unless_all_wait_for_each_other(clock):
    comm = Four(0, [(0.0, 0.0), (1.0, 12.0), (1.0, 3.0), (1.0, 12.0)])
    watch = Watch(comm, 10.0)
    with comm.pulse.within("score", RANKS):
        pass_time(clock, 500, watch.check_main)
        watch.check_main()
        comm.quiet[2] = (1.0, 12.0)
        with pytest.raises(Stalled, match=r"stalled: all ranks wait for each other, as rank 0 .*: thread main: start: "
                                          r"score, update 0, for 500.0 s"):
            watch.check_main()


def test_a_main_thread_is_stalled_if_it_neither_waits_nor_computes(clock):
    comm = Four(2, [WORKS] * 4)
    watch = Watch(comm, 10.0)
    comm.pulse.enter("score", 7)
    for _ in range(9):
        pass_time(clock, 9, watch.check_main)
        clock.used += 0.1
    pass_time(clock, 9, watch.check_main)
    watch.check_main()
    pass_time(clock, 2, watch.check_main)
    with pytest.raises(Stalled, match=r"^stalled: rank 2 \(host n8\): thread main: score, update 7, for 9\d.0 s "
                                      r"\(limit 10 s\)$"):
        watch.check_main()
    with comm.pulse.within("train", LOCAL):
        watch.check_main()
    comm.pulse.enter("record", 7)
    watch.check_main()
    watch.limit_s = 0.0
    pass_time(clock, 1000, watch.check_main)


def test_the_time_in_which_a_whole_process_was_stopped_is_nobodys(clock):
    comm = Four(2, [WORKS, WORKS, WORKS, SILENT])
    watch = Watch(comm, 10.0)
    watch.pulse("worker 0").enter("compute gradient", 8)
    watch.pulse("update").enter("allreduce", 7, RANKS)
    watch.check()
    clock.now += 3600
    pass_time(clock, 9.9, watch.check)
    watch.check()
    clock.now += 0.2
    with pytest.raises(Stalled, match=r"thread worker 0: compute gradient, update 8, for 10\.1 s"):
        watch.check()


def test_a_part_of_an_operation_begins_anew_after_it(clock):
    pulse = Pulse("main")
    pulse.enter("score", 4)
    clock.now += 5
    with pytest.raises(OSError), pulse.within("gather_all", RANKS):
        clock.now += 1
        assert pulse.read() == ("score: gather_all", 4, RANKS, 1.0)
        raise OSError
    assert pulse.read() == ("score", 4, "", 0.0)


def test_threads_that_all_wait_for_each_other_are_a_stall(clock):
    watch = Watch(Single(), 10.0)
    for name in ("update", "worker 0"):
        watch.pulse(name).enter("wait for the other", 3, LOCAL)
    pass_time(clock, 20, watch.check)
    clock.now += 0.5
    with pytest.raises(Stalled, match="all threads wait for each other: update: wait for the other, worker 0"):
        watch.check()
