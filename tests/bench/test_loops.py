"""The two loops: the values of the paper that a hand can check, the identities, and what locks add."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from sprint.bench.loops import Pieces, barrier_seconds, solve, wait, waiting_seconds
from sprint.bench.spread import lock_spread
from sprint.engine.errors import UsageError

QUIET = Pieces(load=0.0, deform=0.0, compute=1.0, update_val=0.0, fetch=0.0, deposit=0.0, take=0.0, add=0.0, old=0.0,
               momentum_add=0.0, reduce=0.25, momentum=0.0, publish=0.0)
BUSY = Pieces(load=0.02, deform=0.01, compute=0.4, update_val=0.003, fetch=0.014, deposit=0.03, take=0.012, add=0.02,
              old=0.001, momentum_add=0.002, reduce=0.15, momentum=0.0015, publish=0.016)


@pytest.mark.parametrize(("nodes", "factor"), [(2, 0.786), (8, 1.966), (16, 2.414)])
def test_barrier_factors_of_the_paper(nodes, factor):
    assert barrier_seconds(8, nodes, 0.5, 1.0, 1.0) == pytest.approx(factor, abs=5e-4)


def expected_barrier(devices, nodes, full, take, add):
    """E(max) - E(one) by listing every outcome of `nodes` binomial counts."""
    chances = [math.comb(devices, i) * full**i * (1 - full) ** (devices - i) for i in range(devices + 1)]
    cost = [0.0] + [take + add * i for i in range(devices)]
    outcomes = np.array(np.meshgrid(*[range(devices + 1)] * nodes)).reshape(nodes, -1)
    weights = np.prod(np.array(chances)[outcomes], axis=0)
    seconds = np.array(cost)[outcomes]
    return float(weights @ (seconds.max(axis=0) - seconds[0]))


@pytest.mark.parametrize(("devices", "nodes", "full"), [(1, 2, 0.3), (3, 4, 0.7), (2, 5, 0.05)])
def test_barrier_equals_the_listing_of_all_outcomes(devices, nodes, full):
    assert barrier_seconds(devices, nodes, full, 0.3, 2.0) == pytest.approx(
        expected_barrier(devices, nodes, full, 0.3, 2.0), rel=1e-12)


@pytest.mark.parametrize(("nodes", "full"), [(16, 1.0), (1, 0.4), (1, 1.0)])
def test_no_barrier_where_all_is_full_or_one_node_runs_alone(nodes, full):
    assert barrier_seconds(8, nodes, full, 1.0, 1.0) == pytest.approx(0, abs=1e-12)


def test_waiting_is_half_the_section_in_the_share_of_time_it_is_held():
    assert wait(2.0, 10.0) == 0.2


@pytest.mark.parametrize("compute", [0.01, 1.0, 40.0])
def test_pieces_that_never_meet_just_add_up(compute):
    solution = solve(replace(QUIET, compute=compute), 1, 3)
    assert solution.t_gpu == pytest.approx(compute)
    assert solution.t_update == pytest.approx(0.25)
    assert solution.barrier == 0


@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (1, 3), (16, 3), (5, 8)])
def test_the_solution_satisfies_every_equation(nodes, devices):
    """Written out again from the paper's table of terms, with the solution's own times."""
    p, s = BUSY, solve(BUSY, nodes, devices)
    gpu, update = float(s.t_gpu), float(s.t_update)
    full = min(update / gpu, 1)
    fetch = min(gpu / update, 1) * p.fetch
    summed = devices * full * p.add - (p.add - p.take) * (1 - (1 - full) ** devices)
    spread = float(lock_spread(devices, nodes, np.array(gpu), np.array(update), p.add, p.deposit, p.fetch))
    listed = (devices + 1) ** nodes < 10**5
    barrier = expected_barrier(devices, nodes, full, p.take, p.add) + spread if listed else s.barrier
    t_gpu = (p.publish**2 / (2 * update) + (devices - 1) * fetch**2 / (2 * gpu) + fetch + p.load + p.deform + p.compute
             + p.update_val + (summed / devices) ** 2 / (2 * update) + p.deposit)
    t_update = (devices * p.deposit**2 / (2 * gpu) + summed + p.old + p.momentum_add + barrier + p.reduce + p.momentum
                + devices * fetch**2 / (2 * gpu) + p.publish)
    assert gpu == pytest.approx(t_gpu, rel=1e-8)
    assert update == pytest.approx(t_update, rel=1e-6)
    assert gpu == pytest.approx(sum(s.gpu_terms.values()), rel=1e-12)
    assert update == pytest.approx(sum(s.update_terms.values()), rel=1e-12)


def test_twice_the_seconds_give_twice_the_seconds():
    """Dimension: every term is a time, so a clock of another unit changes nothing else."""
    double = Pieces(**{field.name: 2 * getattr(BUSY, field.name) for field in fields(BUSY)})
    one, two = solve(BUSY, 16, 3), solve(double, 16, 3)
    for loop in ("gpu_terms", "update_terms"):
        for name, value in getattr(one, loop).items():
            assert getattr(two, loop)[name] == pytest.approx(2 * value, rel=1e-9)


def test_arrays_give_what_numbers_give():
    """Every cell alone and all together; the table is large enough for the locks' part to be interpolated."""
    nodes, compute = np.arange(1, 61)[:, None], np.array([0.05, 0.4, 3.0])
    table = solve(replace(BUSY, compute=compute), nodes, 3)
    assert table.t_update.shape == (60, 3)
    for row, column in ((0, 0), (15, 1), (59, 2), (36, 0)):
        cell = solve(replace(BUSY, compute=compute[column]), int(nodes[row, 0]), 3)
        assert table.t_update[row, column] == pytest.approx(float(cell.t_update), rel=2e-4)
        assert table.t_gpu[row, column] == pytest.approx(float(cell.t_gpu), rel=2e-4)


@pytest.mark.parametrize("free", [{"reduce": 0.0}, {"compute": 0.0}])
def test_a_loop_that_takes_no_time_is_refused(free):
    with pytest.raises(UsageError, match="expected a gradient and an update that take time, got 0 s"):
        solve(replace(QUIET, **free), 4, 2)


def drawn_spread(devices, nodes, t_gpu, t_update, add, deposit, fetch, draws=40_000):
    """The barrier with lock waits minus that without, by drawing nodes."""
    rng = np.random.default_rng(11)
    full, held = min(t_update / t_gpu, 1), min(deposit / t_gpu, min(t_update / t_gpu, 1))
    draw = rng.random((draws, nodes, devices))
    plain = add * (draw < full)
    waits = np.where(draw < held, deposit * rng.random(draw.shape), 0)
    asked = rng.random(draw.shape) < fetch / max(t_gpu, t_update)
    waits = waits + np.where(asked, fetch * rng.random(draw.shape), 0)
    late = lambda seconds: (seconds.sum(-1).max(-1) - seconds[:, 0].sum(-1)).mean()  # noqa: E731
    return late(plain + waits) - late(plain)


@pytest.mark.parametrize(("devices", "nodes", "t_gpu", "t_update"),
                         [(3, 16, 0.5, 0.2), (8, 16, 0.13, 0.35), (2, 2, 1.0, 0.9)])
def test_lock_spread_equals_what_drawing_gives(devices, nodes, t_gpu, t_update):
    got = float(lock_spread(devices, nodes, np.array(t_gpu), np.array(t_update), 0.02, 0.03, 0.014))
    assert got == pytest.approx(drawn_spread(devices, nodes, t_gpu, t_update, 0.02, 0.03, 0.014), rel=0.08, abs=1e-4)


def test_lock_spread_is_nothing_on_one_node_or_without_sections():
    cells = np.array([0.3, 1.0])
    np.testing.assert_allclose(lock_spread(4, 1, cells, cells, 0.02, 0.03, 0.014), 0, atol=1e-12)
    np.testing.assert_array_equal(lock_spread(4, 16, cells, cells, 0.0, 0.0, 0.0), 0)


def played(nodes, devices, work, least, seed=1):
    """Mean time between updates that wait for `least` gradients of each node, gradients coming once in a second."""
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(20):
        following, waiting = rng.uniform(0, 1, (nodes, devices)), np.zeros(nodes, int)
        now, updates = 0.0, []
        while len(updates) < 150:
            come = following <= now
            waiting += come.sum(axis=1)
            following = following + come
            if (waiting >= least).all():
                updates.append(now)
                waiting[:] = 0
                now += work
            elif not come.any():
                now = following.min()
        means.append(np.diff(updates[20:]).mean())
    return np.mean(means)


@pytest.mark.parametrize(("nodes", "devices", "least", "tolerance"), [
    (1, 1, 1, 1e-9), (3, 1, 1, 1e-9), (1, 2, 1, 0.1), (1, 4, 1, 0.1), (1, 3, 2, 0.15), (4, 4, 1, 0.1), (2, 8, 1, 0.1)])
@pytest.mark.parametrize("work", [0.1, 0.6])
def test_waiting_for_gradients_is_what_playing_it_gives(nodes, devices, least, tolerance, work):
    waited = float(waiting_seconds(least, devices, nodes, np.array(1.0), np.array(work)))
    assert work + waited == pytest.approx(played(nodes, devices, work, least), rel=tolerance)


def test_an_update_that_waits_for_nothing_does_not_wait():
    assert waiting_seconds(0, 4, 2, np.array(1.0), np.array(0.2)) == 0
    assert waiting_seconds(1, 4, 2, np.array(1.0), np.array(1.5)) == pytest.approx(0)


def test_one_device_whose_update_waits_for_its_gradient_sets_the_pace():
    solution = solve(replace(QUIET, load=0.1, deform=0.1, old=0.1, reduce=0.1), 3, 1, least=1)
    assert solution.t_update == pytest.approx(1.2)
    assert solution.wait == pytest.approx(1.0)
    assert sum(solution.update_terms.values()) == pytest.approx(0.2)


def test_a_sum_of_nothing_costs_what_clearing_it_does():
    pieces = replace(QUIET, add=0.01, take=0.01, clear=0.004)  # an update comes four times in a turn
    solution = solve(pieces, 1, 2)
    full = float(solution.t_update / solution.t_gpu)
    assert solution.update_terms["sum_gradient"] == pytest.approx(2 * full * 0.01 + (1 - full) ** 2 * 0.004)
    assert solve(pieces, 1, 2, least=1).update_terms["sum_gradient"] == pytest.approx(
        2 * float(solve(pieces, 1, 2, least=1).t_update / solve(pieces, 1, 2, least=1).t_gpu) * 0.01)
