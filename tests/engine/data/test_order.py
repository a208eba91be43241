"""Orders are permutations, depend on nothing but their key, and deal every sample to one rank."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sprint.engine.data.order import epoch_order, permutation, stratified, subset


def test_permutation_is_pinned():
    """These numbers must never change: they are the split of a trained net and the order of a resumed run."""
    assert permutation(8, 0).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]
    assert permutation(8, 3, 1).tolist() == [0, 6, 2, 1, 3, 7, 4, 5]
    assert permutation(0, 1).tolist() == []


@given(st.integers(1, 300), st.integers(0, 2**40), st.integers(0, 9))
def test_permutation_holds_every_number_once(n, seed, epoch):
    assert np.array_equal(np.sort(permutation(n, seed, epoch)), np.arange(n))


@given(st.integers(1, 200), st.integers(1, 17), st.integers(0, 99), st.integers(0, 5), st.booleans())
def test_shards_partition_the_epoch(n, size, seed, epoch, shuffle):
    shards = [epoch_order(n, epoch, seed=seed, shuffle=shuffle, rank=r, size=size) for r in range(size)]
    assert sorted(np.concatenate(shards).tolist()) == list(range(n))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_epochs_and_seeds_differ():
    orders = [epoch_order(50, epoch, seed=seed, shuffle=True).tolist() for epoch in (0, 1) for seed in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert epoch_order(5, 3, seed=1, shuffle=False, rank=1, size=2).tolist() == [1, 3]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(0, 9))
def test_stratified_takes_a_fifth_of_every_class(labels, seed):
    labels = np.array(labels)
    train, test = stratified(labels, seed)
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label in np.unique(labels):
        members = np.sum(labels == label)
        assert abs(np.sum(labels[test] == label) - members / 5) <= 0.5
        assert np.any(labels[train] == label)


def test_subset():
    assert subset(4, None, 0).tolist() == subset(4, 9, 0).tolist() == [0, 1, 2, 3]
    chosen = subset(1000, 10, 0)
    assert len(set(chosen.tolist())) == 10 and np.all(np.diff(chosen) > 0)
    assert chosen[-1] > 500, "a subset must not be the beginning: folders are sorted by class"
