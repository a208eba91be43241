"""Dense layers against float64, by our own tiles and by BLAS, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
from sprint.kernels.dense import FEW, Dense

SIZES = [(7, 11, 3), (1, 1, 1), (10, 1024, 8), (130, 37, 5), (13, 29, FEW + 5), (4, 3, 0)]


@pytest.mark.parametrize(("K", "D", "N"), SIZES)
@pytest.mark.parametrize("relu", [False, True])
def test_both_directions(device, poison, rng, K, D, N, relu):
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((D, N), (K, D), (K,)))
    dy = rng.standard_normal((K, N)).astype(np.float32)
    plan = Dense(device, K, D, N)
    workspace = np.full(-(-plan.workspace_bytes() // 4), np.nan, np.float32)
    y, dw, db, dx = (poison(s) for s in ((K, N), (K, D), (K,), (D, N)))
    plan.forward(x, w, b, y, relu, workspace)
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    expected = w64 @ x64 + b[:, None]
    g = dy * (expected > 0) if relu else dy.astype(np.float64)
    tolerance = {"rtol": 1e-5, "atol": 4e-7 * max(D, K, N, 1)}  # sums of up to 1024 float32 products
    np.testing.assert_allclose(y, np.maximum(expected, 0) if relu else expected, **tolerance)
    plan.backward(x, w, y, dy.copy(), dw, db, dx, relu, workspace)
    np.testing.assert_allclose(dw, g @ x64.T, **tolerance)
    np.testing.assert_allclose(db, g.sum(1), **tolerance)
    np.testing.assert_allclose(dx, w64.T @ g, **tolerance)


def test_wrong_shapes_are_named(fast):
    plan = Dense(fast, 3, 4, 2)
    z = np.zeros((4, 2), np.float32)
    with pytest.raises(ValueError, match="dense: expected w"):
        plan.forward(z, z, z[:, 0], z, False, z.ravel())
