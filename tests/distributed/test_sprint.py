from __future__ import annotations

import itertools
import signal
import threading
import time
import tracemalloc
from dataclasses import asdict

import numpy as np
import pytest
from analytic import Counting, Regression, problem
from sprint.distributed.data_parallel import data_parallel, first_share, share_sizes
from sprint.distributed.launch import guard
from sprint.distributed.options import Options
from sprint.distributed.progress import Progress
from sprint.distributed.ranks import AgreedError, Single
from sprint.distributed.sprint import Interrupted, Sprint
from sprint.distributed.watch import parse_fault

HASH = "0123456789ab"


def options(rate=1.0, **more):
    return Options(rate=lambda samples, version: rate, **{"momentum": 0.0, "stall_s": 10.0, **more})


def run(workers, weights, samples, rules, make=Sprint, **more):
    job = make(Single(), workers, weights, rules, config_hash=HASH, **more)
    job.start(samples)
    job.join()
    return job


def test_no_gradient_is_lost_or_doubled():
    workers = [Counting(7, t, batch=3, delay_s=0.001 * t) for t in range(3)]
    job = run(workers, np.zeros(7, np.float32), 2000, options())
    weights, _, published = job.weights.snapshot()
    assert weights[0] == job.progress.samples == published.samples >= 2000
    assert weights[1:4].sum() == weights[0] and (weights[4:] == 0).all()
    used = job.telemetry.staleness.total
    assert used == job.progress.gradients == job.progress.samples // 3
    left = sum(len(b._deposits) for b in job._buffers)
    assert sum(w.made for w in workers) == used + left


def test_segments_use_what_was_in_flight():
    workers = [Counting(5, t, batch=2, delay_s=0.002) for t in range(2)]
    job = Sprint(Single(), workers, np.zeros(5, np.float32), options(), config_hash=HASH)
    for goal in (40, 41, 80, 120):
        job.start(goal)
        progress = job.join()
        weights, _, _ = job.weights.snapshot()
        assert goal <= progress.samples == weights[0]
    left = sum(len(b._deposits) for b in job._buffers)
    assert 2 * (sum(w.made for w in workers) - left) == job.progress.samples


def test_asynchronous_regression_converges_and_measures_its_staleness():
    rows, targets, solution = problem()
    batches = [np.arange(b, b + 8) for b in range(0, 256, 8)]
    workers = [Regression(rows, targets, batches[t::2], delay_s=0.001) for t in range(2)]
    job = run(workers, np.zeros(37, np.float32), 40000, options(0.03, momentum=0.5, form="mean"))
    np.testing.assert_allclose(job.weights.snapshot()[0], solution, atol=2e-3)
    assert job.progress.loss < 1e-3 and job.telemetry.staleness.largest >= 1
    assert job.progress.staleness == pytest.approx(job.telemetry.staleness.mean)
    terms = job.telemetry.as_dict()["worker_ms"][0]
    assert 0.5 < terms["compute_gradient"] < 50 and terms["fetch_weights"] > 0 and terms["update_gradient"] > 0


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_staleness_never_passes_the_bound(bound):
    workers = [Counting(5, 0, 1, 0.0002), Counting(5, 1, 1, 0.004)]
    job = run(workers, np.zeros(5, np.float32), 400, options(max_staleness=bound))
    free = run([Counting(5, 0, 1, 0.0002), Counting(5, 1, 1, 0.004)], np.zeros(5, np.float32), 400, options())
    assert job.telemetry.staleness.largest <= bound < free.telemetry.staleness.largest


def test_warm_up_is_synchronous_and_then_free():
    workers = [Counting(5, 0, 1, 0.0002), Counting(5, 1, 1, 0.004)]
    job = run(workers, np.zeros(5, np.float32), 500, options(warmup_sync=20))
    arrows = job.telemetry.arrows
    early = arrows[arrows["update"] <= 20]
    assert early["staleness"].max() == 0 and len(early) == 40
    assert arrows["staleness"].max() > 1


def test_rate_is_divided_by_the_staleness_of_each_gradient():
    rules = options(8.0, staleness_rate=True)
    assert [rules.scale(0, 0, late) for late in (0, 1, 2, 4)] == [-8.0, -8.0, -4.0, -2.0]
    workers = [Counting(5, 0, 1, 0.0002), Counting(5, 1, 1, 0.004)]
    job = run(workers, np.zeros(5, np.float32), 300, rules)
    expected = sum(8.0 / max(1, late) for late in job.telemetry.arrows["staleness"])
    assert job.weights.snapshot()[0][0] == pytest.approx(expected, rel=1e-4)


def reference(rows, targets, batches, steps, rate, momentum, form):
    """Momentum descent in float64 on the union batches."""
    w = np.zeros(rows.shape[1])
    delta = np.zeros_like(w)
    for step in range(steps):
        batch = batches[step % len(batches)]
        gradient = rows[batch].T.astype(np.float64) @ (rows[batch].astype(np.float64) @ w - targets[batch])
        delta = momentum * delta - rate * gradient / (len(batch) if form == "mean" else 1)
        w = w + delta
    return w


@pytest.mark.parametrize("form, rate", [("sum", 0.004), ("mean", 0.1)])
def test_sync_equals_one_device_on_the_union_of_uneven_shares(form, rate):
    rows, targets, _ = problem()
    union = [np.arange(b, b + 32) for b in range(0, 224, 32)]
    cuts = [0, 5, 14, 14, 22, 32]  # one worker has an empty share of every batch
    workers = [Regression(rows, targets, [b[i:j] for b in union]) for i, j in itertools.pairwise(cuts)]
    rules = options(rate, momentum=0.9, form=form)
    job = run(workers, np.zeros(37, np.float32), 320, rules, make=data_parallel)
    assert job.progress.version == 10 and job.progress.samples == 320
    expected = reference(rows, targets, union, 10, rate, 0.9, form)
    np.testing.assert_allclose(job.weights.snapshot()[0], expected, rtol=1e-5, atol=1e-6)
    assert job.telemetry.staleness.largest == 0 and job.telemetry.minibatch.largest == 32


def test_sync_resumed_half_way_has_equal_bytes():
    rows, targets, _ = problem()
    batches = [np.arange(b, b + 8) for b in range(0, 256, 8)]
    saved = []
    rules = options(0.01, momentum=0.9)

    def workers():
        return [Regression(rows, targets, batches[t::2]) for t in range(2)]

    whole = run(workers(), np.zeros(37, np.float32), 160, rules, make=data_parallel)
    half = run(workers(), np.zeros(37, np.float32), 80, rules, make=data_parallel,
               save=lambda *args: saved.append(args))
    half.checkpoint()
    weights, momentum, version, state = saved[-1]
    fresh = workers()
    for worker, position in zip(fresh, state["workers"], strict=True):
        worker.restore(position)
    again = run(fresh, weights, 160, rules, make=data_parallel, momentum=momentum,
                progress=Progress(**state["progress"]))
    assert version == 5 and again.progress.version == 10 and asdict(again.progress) == asdict(whole.progress)
    assert again.weights.snapshot()[0].tobytes() == whole.weights.snapshot()[0].tobytes()


def test_checkpoints_have_the_asked_versions_and_the_states_of_what_is_in_them():
    saved = []
    workers = [Counting(5, t, batch=2, delay_s=0.002) for t in range(2)]
    job = run(workers, np.zeros(5, np.float32), 100, options(save_every=5), save=lambda *args: saved.append(args))
    assert saved and all(version % 5 == 0 for _, _, version, _ in saved)
    for weights, _, version, state in saved:
        assert weights[1:3].tolist() == [2.0 * s["made"] for s in state["workers"]]
        assert state["progress"]["samples"] == weights[0] and state["progress"]["version"] == version
    assert job.progress.version >= saved[-1][2]


class Failing(Counting):
    def compute(self):
        if self.made == 5:
            raise OSError("bad JPEG n01440764_11.JPEG")
        return super().compute()


def test_an_exception_in_a_worker_comes_out_of_join_and_the_last_version_is_saved():
    saved = []
    job = Sprint(Single(), [Failing(5, 0), Counting(5, 1, delay_s=0.01)], np.zeros(5, np.float32), options(),
                 config_hash=HASH, save=lambda *args: saved.append(args))
    job.start(10**9)
    with pytest.raises(OSError, match="bad JPEG"):
        job.join()
    assert saved[-1][2] == job.progress.version and saved[-1][0][0] == job.progress.samples
    assert not any(thread.is_alive() for thread in job._threads)


def test_an_exception_in_the_update_thread_comes_out_of_join():
    saved = []
    job = Sprint(Single(), [Counting(5, 0)], np.zeros(5, np.float32), options(), config_hash=HASH,
                 save=lambda *args: saved.append(args))
    job._updater.comm = None  # whatever breaks there
    job.start(10**9)
    with pytest.raises(AttributeError):
        job.join()
    assert len(saved) == 1


@pytest.mark.parametrize("inject", ["nan-grad=0@update=4", None])
def test_divergence_stops_before_the_weights_are_spoilt_and_names_the_staleness(inject):
    rows, targets, _ = problem()
    worker = Regression(rows, targets, [np.arange(8)])
    saved = []
    faults = [parse_fault(inject)] if inject else []
    job = Sprint(Single(), [worker], np.zeros(37, np.float32), options(0.001 if inject else 10.0), faults=faults,
                 config_hash=HASH, save=lambda *args: saved.append(args))
    job.start(10**6)
    with pytest.raises(AgreedError, match=r"diverged: .* at update \d+ .*staleness \d+\.\d\d on average"):
        job.join()
    assert np.isfinite(saved[-1][0]).all() and saved[-1][2] == job.progress.version


def test_a_stalled_worker_is_named():
    class Stuck(Counting):
        def compute(self):
            time.sleep(1.5 if self.made == 3 else 0)
            return super().compute()

    job = Sprint(Single(), [Stuck(5, 0)], np.zeros(5, np.float32), options(stall_s=0.3), config_hash=HASH)
    job.start(10**9)
    with pytest.raises(RuntimeError, match=r"stalled: rank 0 \(host .*\): thread worker 0: compute gradient, update"):
        job.join()
    for thread in job._threads:  # it wakes up, and finds that the run is over
        thread.join(3)
    assert not any(thread.is_alive() for thread in job._threads)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_checkpoint(number):
    saved = []
    job = Sprint(Single(), [Counting(5, 0, delay_s=0.01)], np.zeros(5, np.float32), options(), config_hash=HASH,
                 save=lambda *args: saved.append(args))
    before = signal.getsignal(number)
    job.start(10**9)
    threading.Timer(0.2, signal.raise_signal, (number,)).start()
    with pytest.raises(Interrupted, match=r"stopped at version \d+: SIG") as caught:
        job.join()
    assert caught.value.exit_code == 128 + number and signal.getsignal(number) == before
    assert saved[-1][2] == job.progress.version


def test_steady_state_allocates_no_arrays():
    n = 500_000
    workers = [Counting(n, t, delay_s=0.001) for t in range(2)]
    job = Sprint(Single(), workers, np.zeros(n, np.float32), options(), config_hash=HASH)
    for worker in job._workers:
        worker.fetch = lambda weights: None
    job.start(300)
    job.join()
    tracemalloc.start()
    job.start(1500)
    job.join()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n  # bytes; one vector has 4 * n


def test_a_finished_run_makes_no_further_update():
    job = run([Counting(5, 0)], np.zeros(5, np.float32), 10, options(), progress=Progress(version=3, samples=10))
    assert job.progress.version == 3 and job.weights.snapshot()[0].sum() == 0


def test_options_say_what_is_wrong():
    with pytest.raises(ValueError, match="gradient form: expected one of sum, mean, got 'median'"):
        options(form="median")
    with pytest.raises(ValueError, match="momentum: expected 0 <= momentum < 1, got 1"):
        options(momentum=1.0)
    with pytest.raises(ValueError, match="max-staleness: expected 0 or more, got -1"):
        options(max_staleness=-1)


def test_shares():
    assert first_share(Single(), 3) == (0, 3)
    assert share_sizes(32, 3) == [10, 11, 11] and share_sizes(2, 4) == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="expected batch >= 0"):
        share_sizes(-1, 2)


def test_guard_lets_one_process_raise_as_usual():
    with pytest.raises(KeyError), guard(Single()):
        raise KeyError("x")


def test_the_last_update_is_told_at_the_end_of_a_segment_and_not_after_what_follows():
    job = Sprint(Single(), [Counting(5, 0)], np.zeros(5, np.float32), options(), config_hash=HASH)
    seen = []
    job.start(30)
    job.join(seen.append)
    job.close()
    assert seen[-1] == job.progress


def test_a_main_thread_in_trouble_does_not_agree_on_an_end_that_the_others_do_not_know():
    def full(*_):
        raise OSError("no space left")

    comm, votes = Single(), []
    comm.agree = lambda ok: bool(votes.append(ok)) or ok
    job = Sprint(comm, [Counting(5, 0, delay_s=0.001)], np.zeros(5, np.float32), options(save_every=3),
                 config_hash=HASH, save=full)
    job.start(10**8)
    with pytest.raises(OSError, match="no space left"):
        job.join()
    for thread in job._threads:
        thread.join(5)
    assert not votes and not comm.ended
