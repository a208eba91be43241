"""The two loops of a node, GPU thread and update thread, solved for the time of one turn of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.errors import UsageError
from .spread import lock_spread

Array = np.ndarray
TURNS, CALM, TINY = 500, 20, 1e-300
NODES_OF_RULE, WEIGHTS_OF_RULE = np.polynomial.legendre.leggauss(24)  # of an integral over -1..1
ROUNDS = (1e-3, 1e-5, 1e-7, 1e-10)  # relative changes to settle to, each with a better idea of what locks cost


@dataclass(frozen=True, eq=False)
class Pieces:
    """Seconds of each piece of the loops when nobody is in the way: numbers, or arrays that broadcast together.

    load, deform, compute, update_val: of one sub-batch; fetch: copy of all weights to a device; deposit: adding
    a gradient to its GradBuf; take, add: the first GradBuf of a sum and each further one; clear: the sum of none;
    old, momentum_add, momentum: a node's slice of the parameters; reduce: the Allreduce once all nodes are there;
    publish: replacing LatestWeights. fetch, deposit, take, add, clear and publish are numbers, the same for every
    configuration.
    """

    load: Any
    deform: Any
    compute: Any
    update_val: Any
    fetch: Any
    deposit: Any
    take: Any
    add: Any
    old: Any
    momentum_add: Any
    reduce: Any
    momentum: Any
    publish: Any
    clear: Any = 0.0

    @property
    def free_gpu_turn(self) -> Any:
        """Seconds of a turn of a GPU thread that waits for nobody and always fetches."""
        return self.fetch + self.load + self.deform + self.compute + self.update_val + self.deposit

    @property
    def free_update_turn(self) -> Any:
        """Seconds of a turn of an update thread that waits for nobody and finds no gradient."""
        return self.old + self.momentum_add + self.reduce + self.momentum + self.publish


@dataclass(frozen=True, eq=False)
class Solution:
    """Terms by name (outcome.GPU_TERMS, outcome.UPDATE_TERMS), their sums and the barrier, seconds.

    wait: of the update thread for the gradients that it must have, part of t_update but of no term.
    """

    gpu_terms: dict[str, Any]
    update_terms: dict[str, Any]
    t_gpu: Any
    t_update: Any
    barrier: Any
    wait: Any


def solve(pieces: Pieces, nodes: Any, devices: int, least: int = 0) -> Solution:
    """The fixed point of the two sums, which contain each other.

    nodes: a number or an array that broadcasts with the pieces; the answers have the broadcast shape. least: gradients
    of each node that an update waits for, 0 in the paper.
    Raises: UsageError where a turn takes no time, RuntimeError where the iteration does not settle.
    Source: Oyama et al. 2016, table of terms; the iteration and what locks add to the barrier are ours.
    """
    turns = np.broadcast_arrays(pieces.free_gpu_turn, pieces.free_update_turn, nodes)
    t_gpu, t_update = (np.array(turn, dtype=np.float64) for turn in turns[:2])
    if not (np.all(t_gpu > 0) and np.all(t_update > 0)):
        raise UsageError("predict: expected a gradient and an update that take time, got 0 s")
    spread: Any = 0.0
    for tolerance in ROUNDS:
        solution = _settle(pieces, nodes, devices, least, t_gpu, t_update, spread, tolerance)
        t_gpu, t_update = solution.t_gpu, solution.t_update
        spread = lock_spread(devices, nodes, t_gpu, t_update, float(pieces.add), float(pieces.deposit),
                             float(pieces.fetch))
    return solution


def _settle(pieces: Pieces, nodes: Any, devices: int, least: int, t_gpu: Array, t_update: Array, spread: Any,
            tolerance: float) -> Solution:
    """Turn after turn from the given loop times, with what locks add to the barrier (spread, seconds) held."""
    for turn in range(TURNS):
        found = _turn(pieces, nodes, devices, least, t_gpu, t_update, spread)
        step = max(_change(found.t_gpu, t_gpu), _change(found.t_update, t_update))
        if step < tolerance:
            return found
        part = 1.0 if turn < CALM else 0.5  # the plain iteration settles within a few turns, or swings
        t_gpu = t_gpu + part * (found.t_gpu - t_gpu)
        t_update = t_update + part * (found.t_update - t_update)
    raise RuntimeError(f"predict: expected the loop times to settle, got a change of {step:.1e}")


def _turn(pieces: Pieces, nodes: Any, devices: int, least: int, t_gpu: Array, t_update: Array,
          spread: Any) -> Solution:
    """One evaluation of the sixteen terms for the given loop times."""
    full = np.minimum(t_update / t_gpu, 1.0)
    fetch = np.minimum(t_gpu / t_update, 1.0) * pieces.fetch
    none = 0.0 if least else (1 - full) ** devices
    sum_gradient = sum_seconds(pieces, devices, full, none)
    barrier = barrier_seconds(devices, nodes, full, pieces.take, pieces.add) + spread
    gpu = {"lock_weights": wait(pieces.publish, t_update) + (devices - 1) * wait(fetch, t_gpu),
           "fetch_weights": fetch, "load_image": pieces.load, "deform_image": pieces.deform,
           "compute_gradient": pieces.compute, "compute_update_val": pieces.update_val,
           "lock_gradient": wait(sum_gradient / devices, t_update), "update_gradient": pieces.deposit}
    update = {"lock_gradient": devices * wait(pieces.deposit, t_gpu), "sum_gradient": sum_gradient,
              "update_old_weights": pieces.old, "add_momentum": pieces.momentum_add,
              "allreduce": barrier + pieces.reduce, "update_momentum": pieces.momentum,
              "lock_weights": devices * wait(fetch, t_gpu), "update_weights": pieces.publish}
    busy = sum(update.values()) + 0 * t_update
    alone, together = (waiting_seconds(least, devices, among, t_gpu, busy) for among in (1, nodes))
    update["allreduce"] = update["allreduce"] + together - alone
    return Solution(gpu, update, sum(gpu.values()) + 0 * t_gpu, busy + together, barrier + together - alone, alone)


def sum_seconds(pieces: Pieces, devices: int, full: Any, none: Any) -> Any:
    """Seconds of SumGradient. full: probability that a GradBuf is full; none: that not one of them is."""
    return devices * full * pieces.add - (pieces.add - pieces.take) * (1 - none) + none * pieces.clear


def wait(section: Any, turn: Any) -> Any:
    """Expected wait for a first-come-first-served section that another enters once a `turn` for `section` s.

    Source: Oyama et al. 2016, eq. (7).
    """
    return section * section / (2 * turn)


def waiting_seconds(least: int, devices: int, nodes: Any, t_gpu: Any, busy: Any) -> Any:
    """Expected time from the end of an update's work, `busy` s, until each of `nodes` nodes has `least` gradients.

    Seen from the moment at which a gradient let the update go, all other devices come at even chance within t_gpu, and
    the same device after t_gpu. Source: ours; the paper's updates wait for nothing.
    """
    if not least:
        return np.zeros(np.shape(busy))
    busy = np.minimum(busy, t_gpu)
    moments = busy[..., None] + (t_gpu - busy)[..., None] * (1 + NODES_OF_RULE) / 2
    come = np.clip(moments / t_gpu[..., None], 0.0, 1.0)
    least = min(least, devices)
    others = np.asarray(nodes, np.float64)[..., None] - 1
    all_there = (1 - _fewer(least, devices - 1, come)) * (1 - _fewer(least, devices, come)) ** others
    return (t_gpu - busy) / 2 * ((1 - all_there) @ WEIGHTS_OF_RULE)


def _fewer(least: int, trials: int, part: Array) -> Array:
    """Probability of fewer than `least` successes."""
    return np.asarray(sum(math.comb(trials, n) * part**n * (1 - part) ** (trials - n)
                          for n in range(min(least, trials + 1))))


def barrier_seconds(devices: int, nodes: Any, full: Any, take: Any, add: Any) -> Any:
    """Expected wait for the node that has the most GradBufs to sum up: E(max of all nodes) - E(this node).

    full: probability that a GradBuf is full, min(T_Update / T_GPU, 1), so that their number is binomial;
    take, add: seconds of a node's first full GradBuf and of each further one.
    Source: Oyama et al. 2016, eq. (8), which is the case take = add = alpha.
    """
    full = np.asarray(full, dtype=np.float64)
    empty_powers = [np.ones_like(full)]
    for _ in range(devices):
        empty_powers.append(empty_powers[-1] * (1 - full))
    seconds, below, full_power = np.zeros_like(full * nodes), np.zeros_like(full), np.ones_like(full)
    for count in range(devices):
        below = below + math.comb(devices, count) * full_power * empty_powers[devices - count]
        seconds = seconds + (add if count else take) * (below - np.exp(nodes * np.log(np.maximum(below, TINY))))
        full_power = full_power * full
    return np.maximum(seconds, 0.0)


def _change(new: Array, old: Array) -> float:
    return float(np.max(np.abs(new - old) / np.maximum(new, TINY)))
