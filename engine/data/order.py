"""Orders of samples drawn from seeds: the same on every machine, rank and NumPy version."""

from __future__ import annotations

import numpy as np

TEST_FRACTION = 0.2  # of each class, where a set brings no test part of its own


def permutation(n: int, *key: int) -> np.ndarray:
    """Return a permutation of 0..n-1, int64 (n), that depends only on `n` and the integers of `key`.

    It sorts raw draws of PCG64, whose stream NumPy guarantees; `Generator.permutation` may change.
    """
    draws = np.random.PCG64(np.random.SeedSequence(key)).random_raw(n)
    return np.argsort(draws, kind="stable")


def epoch_order(n: int, epoch: int, *, seed: int, shuffle: bool, rank: int = 0, size: int = 1) -> np.ndarray:
    """Return the samples of one rank in one epoch, int64 (ceil((n - rank) / size)).

    The order of the whole epoch is drawn from (seed, epoch) and dealt out like cards, so over all ranks
    every sample comes exactly once and shards differ by at most one sample.
    """
    whole = permutation(n, seed, epoch) if shuffle else np.arange(n)
    return whole[rank::size]


def stratified(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split samples into (train, test) indices, each int64 and ascending, the same fraction of every class.

    Args: labels int (N). A class of one or two samples stays in train.
    """
    test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        chosen = permutation(len(members), seed, int(label))[: round(len(members) * TEST_FRACTION)]
        test[members[chosen]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def subset(n: int, limit: int | None, seed: int) -> np.ndarray:
    """Return at most `limit` of 0..n-1, drawn without order bias and ascending, int64."""
    if limit is None or limit >= n:
        return np.arange(n)
    return np.sort(permutation(n, seed)[:limit])
