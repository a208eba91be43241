"""The simulation: exact where everything is, equal to the formulas in their limits, and right about faults."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from sprint.bench.cluster import Cluster, Mutex
from sprint.bench.loops import Pieces, barrier_seconds
from sprint.bench.machine_file import load_machine, read_machine
from sprint.bench.model import predict
from sprint.bench.outcome import Config
from sprint.bench.simulate import Weather, simulate
from sprint.engine.errors import UsageError
from sprint.engine.nets import build

QUIET = Pieces(**(dict.fromkeys(Pieces.__dataclass_fields__, 0.0) | {"compute": 1.0, "reduce": 0.25}))


def play(pieces, nodes=1, devices=1, updates=40, starts=0.0, slow=None, deaths=None, detect_s=1.0, computes=None):
    """Run a cluster of constant pieces; returns its tally."""
    draws = iter(lambda: pieces.compute, None) if computes is None else computes
    skip = updates // 10
    cluster = Cluster(Config(nodes, devices, 1), lambda _: pieces, draws, slow or {}, skip, updates - skip)
    return cluster.run(np.broadcast_to(starts, (nodes, devices)), deaths or {}, detect_s)


def test_updates_follow_each_other_at_once():
    tally = play(QUIET)
    np.testing.assert_allclose(np.diff(tally.moments), 0.25, rtol=1e-12)


def test_a_gradient_joins_the_first_visit_after_its_deposit():
    """Gradients end at 1.1, 2.1, ...; visits are at 0, 0.25, 0.5, ...: each waits for the next quarter."""
    tally = play(QUIET, starts=0.1)
    expected = np.zeros(41, dtype=int)
    expected[[5, 9, 13, 17, 21, 25, 29, 33, 37]] = 1  # visit k is at k / 4
    np.testing.assert_array_equal(tally.gradients, expected)
    assert dict(tally.staleness) == {5: 9}  # fetched at 0.1, after the publication of version 0; used by visit 5


def test_gradients_pile_up_while_an_update_is_slow():
    tally = play(replace(QUIET, reduce=3.0), starts=0.5)
    assert tally.gradients[5:40].tolist() == [3] * 35
    assert set(tally.staleness) == {1, 2}


def test_the_mutex_serves_in_order_of_arrival():
    mutex = Mutex()
    asked = [(0.1, 2.0), (0.2, 1.0), (0.3, 0.0), (0.4, 1.0), (9.0, 1.0)]
    assert [mutex.enter(now, hold) for now, hold in asked] == pytest.approx([0.1, 2.1, 3.1, 3.1, 9.0])


def test_a_fetch_waits_for_a_publication_and_gets_the_new_weights():
    """One publication lasts from 0.25 to 0.75 of every 0.75 s; a fetch that comes in between waits."""
    tally = play(replace(QUIET, publish=0.5, fetch=0.01, compute=0.6), starts=0.3, updates=60)
    assert tally.gpu["lock_weights"] > 0
    assert set(tally.staleness) <= {1, 2}


def test_an_update_waits_for_a_deposit_and_takes_it():
    """The deposit lasts from 0.9 to 1.4, the visit comes at 1.0 and waits to 1.4."""
    tally = play(replace(QUIET, compute=0.9, deposit=0.5, reduce=1.0), updates=10)
    assert tally.moments[:3] == pytest.approx([0.0, 1.4, 2.8])
    assert tally.gradients[1] == 1


def test_nodes_meet_when_the_last_arrives():
    starts = np.array([[0.0], [99.0], [99.0]])
    tally = play(replace(QUIET, add=0.5, take=0.5, compute=10.0), nodes=3, starts=starts, updates=60)
    gaps = np.diff(tally.moments)
    assert np.isclose(gaps, 0.25).sum() + np.isclose(gaps, 0.75).sum() == len(gaps)
    assert np.isclose(gaps, 0.75).any()
    assert tally.update["barrier"] > 0


LIMITS = [
    ("updates much faster", {"allreduce": {"alpha": 0, "beta": 1e-9}}, 64, 0.05),
    ("updates much slower", {"allreduce": {"alpha": 0, "beta": 5.1e-9}}, 1, 5.0),
]


@pytest.mark.parametrize(("name", "change", "subbatch", "ratio"), LIMITS, ids=[limit[0] for limit in LIMITS])
@pytest.mark.parametrize("devices", [1, 3])
def test_prediction_equals_simulation_where_the_formulas_are_exact(toy_data, name, change, subbatch, ratio, devices):
    """One node, constant times, short locks: only the lengths of the pieces and their ratio matter."""
    for step in toy_data["steps"].values():
        step["alpha"] = 1e-13
    machine = read_machine(toy_data | change, "t")
    config = Config(1, devices, subbatch)
    predicted = predict(build("lenet"), machine, config)
    simulated = simulate(build("lenet"), machine, config, Weather(), updates=2000, seed=7)
    assert predicted.t_update / predicted.t_gpu < ratio if ratio < 1 else predicted.t_update / predicted.t_gpu > ratio
    assert simulated.t_gpu == pytest.approx(predicted.t_gpu, rel=2e-4)
    assert simulated.t_update == pytest.approx(predicted.t_update, rel=2e-4)
    assert simulated.minibatch.mean == pytest.approx(predicted.minibatch.mean, rel=2e-2)
    assert simulated.t_epoch == pytest.approx(predicted.t_epoch, rel=2e-2)
    assert simulated.staleness.mean == pytest.approx(predicted.staleness.mean, rel=2e-2)


def test_the_barrier_of_equation_8_when_gradbufs_fill_at_random():
    """Gradients of exponential length fill GradBufs independently; summing one takes a hundredth of an update."""
    nodes, devices = 8, 4
    computes = iter(np.random.default_rng(4).gamma(4.0, 0.5, 10**6).tolist())  # mean 2, update 1: about half are full
    pieces = replace(QUIET, compute=2.0, reduce=1.0, add=0.002, take=0.002)
    tally = play(pieces, nodes, devices, updates=1500, computes=computes)
    full = tally.update["sum_gradient"] / tally.update_turns / 0.002 / devices
    expected = barrier_seconds(devices, nodes, full, 0.002, 0.002)
    assert tally.update["barrier"] / tally.update_turns == pytest.approx(float(expected), rel=0.05)


@pytest.mark.parametrize(("machine", "nodes", "subbatch"),
                         [("tsubame2.5", 16, 5), ("tsubame-kfc", 16, 6), ("tsubame-kfc", 4, 1)])
def test_prediction_is_near_simulation_on_the_papers_machines(machine, nodes, subbatch):
    """The errors to beat: 5% of T_Epoch, 9% of the mini-batch, 19% of the staleness."""
    facts = load_machine(machine)
    config = Config(nodes, facts.device.per_node, subbatch)
    predicted = predict(build("cnn-a"), facts, config)
    simulated = simulate(build("cnn-a"), facts, config, Weather(jitter=0.05), updates=300)
    assert predicted.t_epoch == pytest.approx(simulated.t_epoch, rel=0.05)
    assert predicted.minibatch.mean == pytest.approx(simulated.minibatch.mean, rel=0.09)
    assert predicted.staleness.mean == pytest.approx(simulated.staleness.mean, rel=0.19)


def test_the_same_seed_plays_the_same_run_and_another_does_not():
    facts, config = load_machine("tsubame2.5"), Config(4, 3, 2)
    runs = [simulate(build("cnn-a"), facts, config, Weather(jitter=0.1), updates=50, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].plain() == runs[1].plain()
    assert runs[0].t_update != runs[2].t_update


def test_jitter_keeps_the_mean_and_widens_the_times():
    facts, config = load_machine("tsubame2.5"), Config(4, 3, 2)
    calm, rough = (simulate(build("cnn-a"), facts, config, Weather(jitter=j), updates=2000) for j in (0.0, 0.5))
    assert rough.gpu_terms["compute_gradient"] == pytest.approx(calm.gpu_terms["compute_gradient"], rel=0.02)
    assert rough.staleness.deviation > calm.staleness.deviation


def test_measured_times_are_drawn_in_place_of_the_model():
    facts, config = load_machine("tsubame2.5"), Config(2, 3, 2)
    outcome = simulate(build("cnn-a"), facts, config, Weather(times=(0.3, 0.5)), updates=500)
    assert outcome.gpu_terms["compute_gradient"] == pytest.approx(0.4, rel=0.03)


def test_a_slow_node_brings_fewer_gradients():
    even = play(replace(QUIET, reduce=0.24), nodes=2, updates=400)
    slow = play(replace(QUIET, reduce=0.24), nodes=2, updates=400, slow={1: 3.0})
    assert slow.gradients.sum() == pytest.approx(even.gradients.sum() * (1 + 1 / 3) / 2, rel=0.05)


def test_a_death_stops_the_run_until_it_is_noticed_and_then_the_rest_go_on():
    tally = play(replace(QUIET, reduce=1.0), nodes=3, updates=60, deaths={2: 30.5}, detect_s=7.0)
    gaps = np.diff(tally.moments)
    assert np.isclose(gaps, 1.0).sum() == len(gaps) - 1
    assert gaps.max() == pytest.approx(37.5 - 30.0)  # the meeting of second 31 takes place at 30.5 + 7
    assert tally.gradients[10:30].tolist() == [3] * 20
    assert set(tally.gradients[45:60].tolist()) == {2}


def test_an_arrival_of_a_dead_node_does_not_count():
    """Node 1 arrives at once and dies while node 0, slowed by a long sum, is still on its way."""
    pieces = replace(QUIET, reduce=1.0, add=3.0, take=3.0, compute=2.5)
    tally = play(pieces, nodes=2, updates=12, starts=np.array([[0.0], [999.0]]), deaths={1: 4.0}, detect_s=20.0)
    assert tally.moments[:5] == pytest.approx([0, 1, 2, 24, 25], abs=3.01)
    assert any(gap > 15 for gap in np.diff(tally.moments))


@pytest.mark.parametrize(("weather", "message"), [
    ({"jitter": -0.1}, "jitter: expected a number >= 0 and <= 1e+24, got -0.1"),
    ({"detect_s": -1}, "detect: expected a number >= 0 and <= 3600, got -1"),
    ({"times": (0.1, 0)}, "times: expected a number > 0 and <= 1e+24, got 0"),
    ({"slow": {4: 2.0}}, "node of slow: expected a whole number from 0 to 3, got 4"),
    ({"slow": {0: 0.0}}, "slow: expected a number > 0 and <= 1e+24, got 0.0"),
    ({"deaths": {-1: 2.0}}, "node of kill: expected a whole number from 0 to 3, got -1"),
    ({"deaths": dict.fromkeys(range(4), 1.0)}, "kill: expected fewer than 4 deaths, got 4"),
])
def test_weather_that_does_not_fit_is_named(toy, weather, message):
    with pytest.raises(UsageError) as error:
        simulate(build("lenet"), toy, Config(4, 1, 1), Weather(**weather))
    assert str(error.value) == f"simulate: {message}"


def test_without_simpy_one_line_says_how_to_get_it(toy, monkeypatch):
    monkeypatch.setitem(sys.modules, "simpy", None)
    with pytest.raises(RuntimeError, match=r"^simulate: expected simpy, got none \(pip install 'sprint-cnn\[plan\]"):
        simulate(build("lenet"), toy, Config(1, 1, 1), Weather())


def test_too_few_updates_are_refused(toy_data):
    with pytest.raises(UsageError, match=r"updates: expected a whole number from 10 to [0-9]+, got 9"):
        simulate(build("lenet"), read_machine(toy_data, "t"), Config(1, 1, 1), Weather(), updates=9)
    for step in toy_data["steps"].values():
        step["alpha"] = 1e-14
    fast = read_machine(toy_data | {"allreduce": {"alpha": 0, "beta": 1e-12}}, "t")
    with pytest.raises(UsageError, match="updates: expected enough for a gradient to arrive, got 10"):
        simulate(build("lenet"), fast, Config(1, 1, 64), Weather(), updates=10)


def test_the_time_until_the_first_gradients_arrive_is_not_counted(toy_data):
    """Thirty updates a gradient: without a warm-up of some gradients, the first updates would all be empty."""
    for step in toy_data["steps"].values():
        step["alpha"] = 1e-13
    machine = read_machine(toy_data | {"allreduce": {"alpha": 0, "beta": 1e-9}}, "t")
    config = Config(1, 8, 64)
    simulated = simulate(build("lenet"), machine, config, Weather(), updates=60)
    assert simulated.minibatch.mean == pytest.approx(predict(build("lenet"), machine, config).minibatch.mean, rel=0.15)


def test_events_are_cheap_enough_for_a_thousand_nodes():
    """A fiftieth of 1000 nodes x 8 devices x 200 updates in a thirtieth of its two minutes of one core."""
    begin = time.process_time()
    simulate(build("cnn-a"), load_machine("tsubame-kfc"), Config(100, 8, 4), Weather(jitter=0.05), updates=40)
    assert time.process_time() - begin < 4.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_nodes_of_eight_devices_play_200_updates_within_two_minutes():
    begin = time.process_time()
    outcome = simulate(build("cnn-a"), load_machine("tsubame-kfc"), Config(1000, 8, 4), Weather(jitter=0.05))
    assert time.process_time() - begin < 120
    assert outcome.minibatch.mean > 0
