"""Optimisers against their formulas in float64, and their state."""

from __future__ import annotations

import numpy as np
import pytest
from sprint.engine.errors import UsageError
from sprint.engine.optim import ADAGRAD_EPSILON, STATE_BUFFERS, open_optimizer
from sprint.engine.params import Params

SHAPES = {"w": (7, 11), "b": (7,)}
LR, MU, DECAY = 0.1, 0.8, 0.01


def reference(name, w, gradients):
    state = np.zeros_like(w)
    for g in gradients:
        g = g + DECAY * w
        if name == "sgd":
            w = w - LR * g
        elif name == "momentum":
            state = MU * state - LR * g
            w = w + state
        else:
            state = state + g * g
            w = w - LR * g / (np.sqrt(state) + ADAGRAD_EPSILON)
    return w


@pytest.mark.parametrize("name", STATE_BUFFERS)
def test_three_updates_and_a_restored_fourth(name, fast, rng):
    weights, grads = Params(fast, SHAPES), Params(fast, SHAPES)
    start = {k: rng.standard_normal(s).astype(np.float32) for k, s in SHAPES.items()}
    weights.upload(start)
    optimizer = open_optimizer(name, weights, grads, momentum=MU, weight_decay=DECAY)
    gradients = [rng.standard_normal(SHAPES["w"]).astype(np.float32) for _ in range(4)]
    for i, g in enumerate(gradients):
        if i == 3:  # a new optimiser goes on where the old one stopped
            state = {k: v.copy() for k, v in optimizer.state().items()}
            optimizer = open_optimizer(name, weights, grads, momentum=MU, weight_decay=DECAY)
            optimizer.restore(state)
        grads.views["w"][:] = g
        optimizer.update(LR)
    expected = reference(name, start["w"].astype(np.float64), [g.astype(np.float64) for g in gradients])
    np.testing.assert_allclose(weights.views["w"], expected, rtol=1e-5, atol=1e-6)
    assert len(optimizer.state()) == STATE_BUFFERS[name]


def test_unknown_optimiser_and_foreign_state_are_refused(fast):
    weights, grads = Params(fast, SHAPES), Params(fast, SHAPES)
    with pytest.raises(UsageError, match="adam"):
        open_optimizer("adam", weights, grads)
    with pytest.raises(ValueError, match="momentum"):
        open_optimizer("momentum", weights, grads).restore({"squares": np.zeros(1)})
