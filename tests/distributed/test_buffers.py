from __future__ import annotations

import threading

import numpy as np
import pytest
from analytic import Counting
from sprint.distributed.buffers import TAIL, Deposit, GradientBuffer, VersionedWeights
from sprint.distributed.telemetry import UPDATE_TERMS, WORKER_TERMS, Clock


class Filler(Counting):
    """A worker whose gradient is all `value`."""

    def __init__(self, n_params, value):
        super().__init__(n_params, 0)
        self.value = value

    def deposit(self, buffer, add, scale):
        if add:
            buffer += scale * self.value
        else:
            buffer.fill(scale * self.value)


def clocks():
    return Clock(WORKER_TERMS), Clock(UPDATE_TERMS)


def entry(worker=0, version=0, samples=1, loss=1.0):
    return Deposit(worker, version, 0, samples, loss)


def test_two_workers_adding_a_thousand_ones_each_make_two_thousand():
    buffer, n = GradientBuffer(11, version=0), 11
    parts = [np.full(n + TAIL, np.nan, np.float32)]
    taken = []
    ended = threading.Event()

    def deposit(worker):
        clock = Clock(WORKER_TERMS)
        for _ in range(1000):
            buffer.deposit(worker, entry(), lambda late: 1.0, clock)

    def collect():
        clock, update, total = Clock(UPDATE_TERMS), 0, np.zeros(n)
        while not ended.is_set() or buffer.filled():
            update += 1
            parts[0], deposits = buffer.collect(parts[0], True, update, clock)
            if deposits:
                total += parts[0][:n]
                taken.extend(deposits)
        parts.append(total)

    workers = [threading.Thread(target=deposit, args=(Filler(n, 1.0),)) for _ in range(2)]
    collector = threading.Thread(target=collect)
    for thread in [*workers, collector]:
        thread.start()
    for thread in workers:
        thread.join(20)
    ended.set()
    collector.join(20)
    assert len(taken) == 2000
    np.testing.assert_array_equal(parts[1], np.full(n, 2000.0))


def test_a_gradient_carries_the_update_that_uses_it_and_its_exact_staleness():
    buffer, (work, update) = GradientBuffer(3, version=4), clocks()
    seen = []

    def scale(late):
        seen.append(late)
        return -1.0

    send = np.zeros(3 + TAIL, np.float32)
    buffer.deposit(Filler(3, 1.0), entry(version=4), scale, work)
    _, first = buffer.collect(send, True, 5, update)
    buffer.deposit(Filler(3, 1.0), entry(version=4), scale, work)  # while update 5 is under way
    _, second = buffer.collect(send, True, 6, update)
    assert [d.update for d in first + second] == [5, 6]
    assert [d.staleness for d in first + second] == seen == [0, 1]


def test_collect_trades_the_first_and_adds_the_others():
    one, two, (work, update) = GradientBuffer(3, 0), GradientBuffer(3, 0), clocks()
    send = np.full(3 + TAIL, np.nan, np.float32)
    one.deposit(Filler(3, 2.0), entry(), lambda late: 1.0, work)
    two.deposit(Filler(3, -5.0), entry(), lambda late: 0.5, work)
    send, _ = one.collect(send, True, 1, update)
    same, _ = two.collect(send, False, 1, update)
    assert same is send
    np.testing.assert_array_equal(send[:3], [-0.5] * 3)
    untouched, nothing = one.collect(send, True, 2, update)
    assert untouched is send and nothing == []
    one.deposit(Filler(3, 7.0), entry(), lambda late: 1.0, work)  # into the array that was NaN: written, not added
    np.testing.assert_array_equal(one.collect(send, True, 3, update)[0][:3], [7.0] * 3)


def test_a_deposit_that_fails_leaves_nothing_behind():
    class Broken(Filler):
        def deposit(self, buffer, add, scale):
            buffer[0] = 99.0
            raise OSError("device lost")

    buffer, (work, update) = GradientBuffer(3, 0), clocks()
    with pytest.raises(OSError, match="device lost"):
        buffer.deposit(Broken(3, 1.0), entry(), lambda late: 1.0, work)
    assert not buffer.filled()
    buffer.deposit(Filler(3, 1.0), entry(), lambda late: 1.0, work)
    assert buffer.collect(np.zeros(3 + TAIL, np.float32), True, 1, update)[0][0] == 1.0


def test_readers_never_see_half_an_update():
    """The update thread publishes arrays of one value; torn weights would hold two, or the wrong version's."""
    n, versions = 4099, 400
    weights = VersionedWeights(np.zeros(n, np.float32))
    torn, read = [], [0, 0]

    class Reader:
        def fetch(self, array):
            self.low, self.high = float(array.min()), float(array.max())

    def reader(index):
        clock, known, worker = Clock(WORKER_TERMS), -1, Reader()
        while known < versions:
            published = weights.fetch(worker, known, clock)
            if published.version > known:
                read[index] += 1
                if not worker.low == worker.high == published.version == published.samples:
                    torn.append((worker.low, worker.high, published.version))
                known = published.version

    threads = [threading.Thread(target=reader, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    clock = Clock(UPDATE_TERMS)
    for version in range(1, versions + 1):
        spare = weights.spare
        spare[:n // 2] = version
        spare[n // 2:] = version
        weights.publish(version, clock)
    for thread in threads:
        thread.join(20)
    assert torn == [] and min(read) >= 1
    assert weights.published.version == versions


def test_momentum_is_the_last_change_and_starts_as_given():
    start, momentum = np.array([1.0, -2.0, 3.0], np.float32), np.array([0.1, 0.2, -0.3], np.float32)
    weights = VersionedWeights(start, momentum, version=7, samples=70)
    part = np.full(2, np.nan, np.float32)
    weights.delta(slice(1, 3), part)
    np.testing.assert_array_equal(part, momentum[1:])
    np.testing.assert_array_equal(weights.snapshot()[1], momentum)
    weights.spare[:3] = [2.0, -2.5, 3.0]
    weights.publish(80, Clock(UPDATE_TERMS))
    weights.spare[:3] = np.nan  # the next update receives here: nothing published may be touched
    saved, delta, published = weights.snapshot()
    np.testing.assert_array_equal(saved, [2.0, -2.5, 3.0])
    np.testing.assert_array_equal(delta, [1.0, -0.5, 0.0])
    assert published[:2] == (8, 80)


def test_wrong_weights_are_refused():
    with pytest.raises(TypeError, match="float64"):
        VersionedWeights(np.zeros(3))
    with pytest.raises(ValueError, match=r"momentum: expected shape \(3,\), got \(4,\)"):
        VersionedWeights(np.zeros(3, np.float32), np.zeros(4, np.float32))
