"""The loader hands out every sample once, in an order that its seed decides, and always ends its threads."""

from __future__ import annotations

import itertools
import json
import threading
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sprint.engine.data.loader import Loader
from sprint.engine.data.split import ArraySplit, Samples

pytestmark = pytest.mark.timeout(60)


def alive():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader-")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert alive() == []


def steps(loader, count=None):
    """Return (epoch, position, samples) of `count` steps; labels and pixels must belong to the samples."""
    seen = []
    for batch in itertools.islice(loader, count):
        assert np.all(batch.images == (batch.indices % 251).astype(np.uint8)[:, None, None, None])
        assert batch.labels.dtype == np.int32 and np.array_equal(batch.labels, batch.indices % 7)
        seen.append((batch.epoch, batch.position, batch.indices.tolist()))
    return seen


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 60), size=st.integers(1, 7), subbatch=st.integers(1, 9), threads=st.integers(0, 3))
def test_all_ranks_together_see_every_sample_once_an_epoch(numbered, n, size, subbatch, threads):
    size = min(n, size)
    seen = {0: [], 1: []}
    for rank in range(size):
        with Loader(numbered(n), subbatch, 5, rank=rank, size=size, threads=threads, epochs=2) as loader:
            batches = steps(loader)
            assert len(batches) == 2 * loader.batches_per_epoch
        for epoch, position, indices in batches:
            assert len(indices) == min(
                subbatch, loader.samples - position
            )  # the last one is delivered, smaller
            seen[epoch] += indices
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(n))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 40), parts=st.lists(st.integers(1, 9), min_size=1, max_size=4), threads=st.integers(0, 2))
def test_parts_of_a_union_make_up_the_batches_of_one_rank(numbered, n, parts, threads):
    union = sum(parts)
    with Loader(numbered(n), union, 3, epochs=2) as loader:
        whole = steps(loader)
    found = []
    for k, part in enumerate(parts):
        with Loader(numbered(n), part, 3, first=sum(parts[:k]), union=union, threads=threads, epochs=2) as loader:
            found.append(steps(loader))
            assert (loader.state()["epoch"], loader.state()["position"]) == (2, 0)
    for batches in zip(*found, strict=True):
        assert {batch[:2] for batch in batches} == {batches[0][:2]}
    joined = [(*b[0][:2], [sample for part in b for sample in part[2]]) for b in zip(*found, strict=True)]
    assert joined == whole


def test_order_does_not_depend_on_threads(numbered):
    def uneven(first):
        return (first * 7919 % 5) / 1000  # seconds: later batches are often ready first

    runs = []
    for threads in (0, 1, 4):
        with Loader(numbered(43, delay=uneven), 5, seed=1, threads=threads, epochs=3) as loader:
            runs.append(steps(loader))
    assert runs[0] == runs[1] == runs[2]
    assert [epoch for epoch, _, _ in runs[0]] == [0] * 9 + [1] * 9 + [2] * 9


def test_without_shuffle_samples_come_in_order(numbered):
    with Loader(numbered(7), 3, shuffle=False, epochs=1) as loader:
        assert steps(loader) == [(0, 0, [0, 1, 2]), (0, 3, [3, 4, 5]), (0, 6, [6])]


@settings(max_examples=30, deadline=None)
@given(done=st.integers(0, 20), threads=st.integers(0, 2), first=st.integers(1, 6), then=st.integers(1, 6))
def test_resume_goes_on_exactly(numbered, done, threads, first, then):
    """Stopped anywhere, also inside an epoch, and resumed: the same samples in the same order."""
    order = dict(seed=3, rank=1, size=2)
    with Loader(numbered(23), first, threads=threads, **order) as loader:
        before = steps(loader, done)
        state = json.loads(json.dumps(loader.state()))
    with Loader(numbered(23), then, threads=threads, **order) as loader:
        steps(loader, 2)  # restoring a running loader drops what it has read ahead
        loader.restore(state)
        assert loader.state() == state
        after = steps(loader, 30)
    with Loader(numbered(23), 1, threads=0, **order) as loader:
        whole = [sample for _, _, samples in steps(loader, 300) for sample in samples]
    resumed = [sample for _, _, samples in before + after for sample in samples]
    assert resumed == whole[: len(resumed)]


def test_state_of_another_order_is_refused(numbered):
    with Loader(numbered(20), 4, rank=1, size=2) as loader:
        for key, value in (("size", 4), ("rank", 0), ("seed", 9), ("samples", 11), ("shuffle", False)):
            with pytest.raises(ValueError, match=f"{key} .*, got {value}"):
                loader.restore({**loader.state(), key: value})
        with pytest.raises(ValueError, match="position below 10, got 10"):
            loader.restore({**loader.state(), "position": 10})


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_failure_in_a_thread_is_raised_in_the_consumer(numbered, threads):
    """The exception itself, within one step, again if asked again; and its thread is gone."""
    with Loader(numbered(12, broken={0}), 4, shuffle=False, threads=threads) as loader:
        for _ in range(2):
            with pytest.raises(ValueError, match="sample 0 is broken"):
                next(loader)
            assert alive() == []


def test_failure_ahead_does_not_wait_for_its_turn(numbered):
    first_is_here, failed = threading.Event(), threading.Event()

    def delay(first):
        if first == 4:
            failed.wait(20)
        if first == 8:
            first_is_here.wait(20)
        return 0

    with Loader(numbered(40, broken={9}, delay=delay), 4, shuffle=False, threads=2) as loader:
        assert next(loader).position == 0
        first_is_here.set()
        threading.Timer(0.5, failed.set).start()  # the batch of 4..7 is still being read when 9 fails
        with pytest.raises(ValueError, match="sample 9 is broken"):
            next(loader)


def test_failure_loses_no_place(numbered):
    split = numbered(40, broken={9})
    with Loader(split, 4, shuffle=False, threads=0) as loader:
        steps(loader, 2)
        with pytest.raises(ValueError, match="sample 9"):
            next(loader)
        split.broken = ()
        assert steps(loader, 1) == [(0, 8, [8, 9, 10, 11])]


@pytest.mark.parametrize("steps_before", [0, 1, 5])
def test_close_ends_threads_that_wait_or_read(numbered, steps_before):
    loader = Loader(numbered(1000, delay=lambda _: 0.01), 4, threads=3)
    assert alive() == []  # constructing starts nothing
    steps(loader, steps_before)
    assert len(alive()) == (3 if steps_before else 0)
    loader.close()
    assert alive() == []
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(loader)


def test_leaving_the_block_by_an_exception_ends_threads(numbered):
    with pytest.raises(KeyboardInterrupt), Loader(numbered(100), 4, threads=2) as loader:
        next(loader)
        raise KeyboardInterrupt
    assert alive() == []


def test_the_end_is_repeated(numbered):
    for threads in (0, 2):
        with Loader(numbered(5), 2, threads=threads, epochs=1) as loader:
            assert len(list(loader)) == 3
            assert list(loader) == []
            assert loader.state()["epoch"] == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_reading_ahead_is_bounded_and_a_batch_stays_whole_until_the_next(numbered, threads):
    split = numbered(10_000)
    with Loader(split, 4, threads=threads) as loader:
        addresses = set()
        for step in range(1, 30):
            batch = next(loader)
            time.sleep(0.002)  # threads fill every buffer that they may
            assert np.all(batch.images == (batch.indices % 251)[:, None, None, None])
            assert split.reads <= step + threads + 1
            addresses.add(batch.images.ctypes.data)
    assert len(addresses) <= threads + 2


def test_steady_state_allocates_no_images(rng):
    images = rng.integers(0, 256, (64, 100, 120, 3), np.uint8)
    split = ArraySplit(Samples(images, np.zeros(64, np.int32)), (3, 100, 120))
    with Loader(split, 16, threads=1) as loader:
        steps_taken = [next(loader).position for _ in range(4)]
        tracemalloc.start()
        steps_taken += [next(loader).position for _ in range(20)]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(steps_taken) == 24
    assert peak < images[0].nbytes, "a batch is 16 images; not even one was allocated"


@pytest.mark.parametrize("threads", [0, 2])
def test_unreadable_samples_are_left_out(numbered, threads):
    unreadable = {1, 2, 4, 5, 6, 7, 11}
    with Loader(numbered(12, unreadable=unreadable), 4, shuffle=False, threads=threads, epochs=2) as loader:
        batches = steps(loader)
    assert batches == [(e, p, s) for e in (0, 1) for p, s in ((0, [0, 3]), (8, [8, 9, 10]))]


def test_nothing_readable_is_an_error_not_a_hang(numbered):
    with (
        Loader(numbered(6, unreadable=range(6)), 4) as loader,
        pytest.raises(ValueError, match="readable image in 6 samples"),
    ):
        next(loader)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(subbatch=0), "subbatch >= 1"),
        (dict(threads=-1), "threads >= 0"),
        (dict(seed=-1), "seed >= 0"),
        (dict(rank=2, size=2), "rank 2, size 2"),
        (dict(rank=0, size=0), "rank 0, size 0"),
        (dict(size=11), "each of 11 ranks, got 10"),
        (dict(first=3, union=6), "3 \\+ 4 of 6"),
        (dict(first=-1), "-1 \\+ 4 of None"),
    ],
)
def test_arguments_out_of_range(numbered, arguments, message):
    with pytest.raises(ValueError, match=message):
        Loader(numbered(10), **{"subbatch": 4, **arguments})
