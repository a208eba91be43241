"""Gradient workers whose right answer is known: used by the tests in process and by the programs under mpirun."""

from __future__ import annotations

import time

import numpy as np


class Counting:
    """Every sample pulls element 0 and this worker's own element down by 1: with rate 1 the weights count samples.

    In float32 the counts are exact up to 2**24, so a lost or doubled gradient shows as a wrong integer.
    """

    def __init__(self, n_params, own, batch=3, delay_s=0.0, limit=None):
        self.n_params, self._own, self._batch, self._delay_s = n_params, own, batch, delay_s
        self._limit = limit
        self.made = 0
        self.divisions = []
        self.read = []

    def fetch(self, weights):
        self.read.append(weights.copy())
        del self.read[:-1]

    def compute(self):
        if self._delay_s:
            time.sleep(self._delay_s)
        if self._limit is not None and self.made >= self._limit:
            return 0.0, 0
        self.made += 1
        return 0.5 * self._batch, self._batch

    def deposit(self, buffer, add, scale):
        if not add:
            buffer.fill(0.0)
        buffer[0] += scale * -self._batch
        buffer[1 + self._own] += scale * -self._batch

    def divide(self, share, shares, samples):
        self.divisions.append((share, shares, samples))

    def state(self):
        return {"made": self.made}

    def restore(self, state):
        self.made = state["made"]

    def close(self):
        pass


class Late(Counting):
    """Its first gradient takes until is_over() is true, and then fails."""

    is_over = staticmethod(lambda: True)

    def compute(self):
        while not self.is_over():
            time.sleep(0.001)
        raise RuntimeError("late failure")


class Regression:
    """Least squares on rows (m, n_params): loss = 0.5 * sum (row . w - target)^2, gradient computed in float32.

    `batches` is a list of index arrays, used in a circle.
    """

    def __init__(self, rows, targets, batches, delay_s=0.0):
        self.n_params = rows.shape[1]
        self._rows, self._targets, self._batches = rows, targets, batches
        self._delay_s = delay_s
        self._weights = np.full(self.n_params, np.nan, np.float32)
        self._gradient = np.full(self.n_params, np.nan, np.float32)
        self._position = 0
        self.times = {"load_image": 0.0, "compute_update_val": 0.0}

    def fetch(self, weights):
        np.copyto(self._weights, weights)

    def compute(self):
        if self._delay_s:
            time.sleep(self._delay_s)
        batch = self._batches[self._position % len(self._batches)]
        self._position += 1
        rows = self._rows[batch]
        error = rows @ self._weights - self._targets[batch]
        self._gradient[:] = error @ rows
        return float(0.5 * np.square(error, dtype=np.float64).sum()), len(batch)

    def deposit(self, buffer, add, scale):
        update = np.float32(scale) * self._gradient
        if add:
            np.add(buffer, update, out=buffer)
        else:
            np.copyto(buffer, update)

    def divide(self, share, shares, samples):
        self._position = samples // shares + share

    def state(self):
        return {"position": self._position}

    def restore(self, state):
        self._position = state["position"]

    def close(self):
        pass


def problem(n_params=37, samples=256, seed=7):
    """Return rows (samples, n_params), targets (samples,) float32 and the weights that solve it exactly."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((samples, n_params)).astype(np.float32)
    solution = rng.standard_normal(n_params).astype(np.float32)
    return rows, rows @ solution, solution
