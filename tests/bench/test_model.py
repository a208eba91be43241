"""Predictions: hand-worked sums, equations (9) and (10), distributions, memory and uncertainty."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sprint.bench.loops import Pieces, solve
from sprint.bench.machine import CROWDED
from sprint.bench.machine_file import load_machine, read_machine
from sprint.bench.model import minibatch_distribution, predict, staleness_distribution, staleness_mean
from sprint.bench.outcome import GPU_TERMS, UPDATE_TERMS, Config, Distribution
from sprint.bench.pieces import gradient_time, pieces_of
from sprint.engine.errors import UsageError
from sprint.engine.layers import Conv2D, Dense, MaxPool2D, NetSpec, ReLU, SoftmaxCrossEntropy
from sprint.engine.nets import build

TINY = NetSpec("tiny", (2, 6, 8), (Conv2D(4, (3, 3)), ReLU(), MaxPool2D(), Dense(5), SoftmaxCrossEntropy()))


def gemm(m, n, k):
    return max(2 * m * n * k / 5e11, 4 * (m * k + k * n + m * n) / 1e11)


def test_gradient_time_is_the_sum_that_a_hand_writes_down(toy):
    """Equation (4) for x(2,N,6,8), 4 filters 3x3: y(4,N,4,6), pooled to 2x3, 24 values into 5 classes; N = 3."""
    N, y = 3, 4 * 4 * 6
    kernels = [18 * 24 * N, y * N, 24 * N, 24 * N, 5 * N, 5 * N,  # im2col bias pool flatten bias loss
               5 * N, 24 * N, y * N, 18 * 24 * N, y * N]  # bias, flatten, pool, im2col, bias going back
    gemms = [(4, 24 * N, 18), (5, N, 24), (5, 24, N), (24, N, 5), (4, 18, 24 * N)]
    expected = sum(1e-9 * e + 1e-6 for e in kernels) + sum(gemm(*sizes) for sizes in gemms)
    assert float(gradient_time(TINY, toy, N).total) == pytest.approx(expected, rel=1e-12)
    assert gradient_time(TINY, toy, N).launches == len(kernels) + len(gemms)


def test_sub_batches_in_one_array_give_what_each_gives_alone(toy):
    sizes = np.array([1, 4, 9])
    together = gradient_time(build("lenet"), toy, sizes).total
    np.testing.assert_allclose(together, [gradient_time(build("lenet"), toy, n).total for n in sizes], rtol=1e-13)


def test_automatic_convolution_takes_the_faster_way_of_each_direction(toy_data):
    times = {}
    for forward in (1e9, 1e13):
        toy_data["gemm"] = {"sgemm": toy_data["gemm"]["sgemm"], "implicit": {**toy_data["gemm"]["sgemm"]}}
        toy_data["gemm"]["implicit.forward"] = {"peak_flops": forward, "efficiency": 1, "bandwidth": 1e12}
        for conv in ("explicit", "implicit", "auto"):
            times[conv, forward] = gradient_time(build("lenet"), read_machine(toy_data | {"conv": conv}, "t"), 8)
    for forward in (1e9, 1e13):
        best = min(float(times["explicit", forward].total), float(times["implicit", forward].total))
        assert float(times["auto", forward].total) <= best * (1 + 1e-12)
    assert float(times["auto", 1e9].by_constant["gemm.implicit.forward"]) == 0
    assert float(times["auto", 1e13].by_constant["gemm.implicit.forward"]) > 0


def test_pieces_follow_parameters_slices_and_pixels(toy):
    spec = build("lenet")
    pieces = pieces_of(spec, toy, 4, 5, gradient_time(spec, toy, 5), 1)
    parameters = 20 * 26 + 50 * 501 + 500 * 801 + 10 * 501
    assert pieces.fetch == pytest.approx(1e-9 * parameters)
    assert pieces.momentum_add == pytest.approx(1e-9 * parameters / 4)
    assert pieces.load == pytest.approx(1e-9 * 28 * 28 * 5)
    assert pieces.reduce == pytest.approx((1e-9 * 2 + 2e-9) * parameters)


@pytest.mark.parametrize(("nodes", "devices", "subbatch"), [(1, 1, 1), (16, 3, 5), (7, 8, 2)])
def test_epoch_and_minibatch_are_equations_9_and_10(toy, nodes, devices, subbatch):
    outcome = predict(build("lenet"), toy, Config(nodes, devices, subbatch, images=60_000))
    minibatch = nodes * devices * subbatch * outcome.t_update / outcome.t_gpu
    assert outcome.minibatch.mean == pytest.approx(minibatch, rel=1e-6)
    assert outcome.t_epoch == pytest.approx(60_000 * outcome.t_gpu / (nodes * devices * subbatch), rel=1e-6)
    assert set(outcome.gpu_terms) == set(GPU_TERMS)
    assert set(outcome.update_terms) == set(UPDATE_TERMS)
    assert outcome.t_gpu == pytest.approx(sum(outcome.gpu_terms.values()))
    assert outcome.t_update == pytest.approx(sum(outcome.update_terms.values()))


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0, 2.75])
def test_minibatch_is_whole_turns_and_a_binomial_rest(ratio):
    distribution = minibatch_distribution(Config(2, 3, 5), ratio)
    part = ratio - math.floor(ratio)
    assert distribution.mean == pytest.approx(30 * ratio, abs=1e-6)
    assert distribution.deviation == pytest.approx(5 * math.sqrt(6 * part * (1 - part)), abs=1e-4)
    assert distribution.values.min() >= 30 * math.floor(ratio)
    chosen = dict(zip(distribution.values.tolist(), distribution.probabilities.tolist(), strict=True))
    if ratio == 0.3:
        assert chosen[10] == pytest.approx(math.comb(6, 2) * 0.3**2 * 0.7**4, rel=1e-6)


def solved(compute, reduce):
    quiet = dict.fromkeys(Pieces.__dataclass_fields__, 0.0)
    return solve(Pieces(**(quiet | {"compute": compute, "reduce": reduce})), 1, 1)


@pytest.mark.parametrize(("flight", "expected"), [(2.3, {3: 0.7, 4: 0.3}), (0.4, {1: 0.6, 2: 0.4}), (3.0, {4: 1.0})])
def test_staleness_of_one_device(flight, expected):
    """r = flight / T_Update: ceil(r) with probability ceil(r) - r, else one more; the mean is 1 + r."""
    solution = solved(flight, 1.0)
    distribution = staleness_distribution(solution, 1)
    assert dict(zip(distribution.values.tolist(), distribution.probabilities.tolist(), strict=True)) == pytest.approx(
        expected)
    assert distribution.mean == pytest.approx(1 + flight)
    assert staleness_mean(solution, 1) == pytest.approx(1 + flight)


def test_staleness_by_a_clock():
    """Weights fetched at a random moment, deposit after the flight, visits once a T_Update: count the visits."""
    flight, period = 1.7, 0.8
    fetched = np.random.default_rng(3).uniform(0, period, 200_000)  # after the publication at 0
    used = np.ceil((fetched + flight) / period)  # visits are at 0, period, 2 period, ...
    distribution = staleness_distribution(solved(flight, period), 1)
    for value, chance in zip(distribution.values, distribution.probabilities, strict=True):
        assert np.mean(used == value) == pytest.approx(chance, abs=5e-3)


def test_later_devices_are_visited_later_and_so_are_less_stale():
    quiet = dict.fromkeys(Pieces.__dataclass_fields__, 0.0)
    pieces = Pieces(**(quiet | {"compute": 5.0, "reduce": 1.0, "add": 0.4, "take": 0.4}))
    solution = solve(pieces, 1, 2)
    visit = float(solution.update_terms["sum_gradient"]) / 2
    flight, update = 5.0 + float(solution.gpu_terms["lock_gradient"]), float(solution.t_update)
    assert visit > 0
    assert staleness_mean(solution, 2) == pytest.approx(1 + (flight + flight - visit) / 2 / update)


def test_uncertainty_follows_from_the_residuals(toy_data):
    spec, config = build("lenet"), Config(1, 1, 64)
    assert set(predict(spec, read_machine(toy_data, "t"), config).uncertainty.values()) == {0.0}
    toy_data["gemm"]["sgemm"]["residual"] = 0.2
    machine = read_machine(toy_data, "t")
    outcome = predict(spec, machine, config)
    share = float(gradient_time(spec, machine, 64).by_constant["gemm.sgemm"]) / outcome.t_gpu
    assert outcome.uncertainty["t_gpu"] == pytest.approx(0.2 * share, rel=1e-2)
    assert outcome.uncertainty["t_epoch"] == pytest.approx(outcome.uncertainty["t_gpu"], rel=1e-2)
    toy_data["kernels"]["im2col"]["residual"] = 0.3
    toy_data["allreduce"]["residual"] = 0.5
    both = predict(spec, read_machine(toy_data, "t"), config).uncertainty
    assert both["t_gpu"] > outcome.uncertainty["t_gpu"]
    assert both["t_update"] > 0.01


def test_what_crowding_is_off_moves_its_own_group(toy_data):
    toy_data["contention"] = {"any": {"1": {"gradient": {"alpha": 2.0, "residual": 0.1}}}}
    outcome = predict(build("lenet"), read_machine(toy_data, "t"), Config(1, 1, 64))
    share = outcome.gpu_terms["compute_gradient"] / outcome.t_gpu
    assert outcome.uncertainty["t_gpu"] == pytest.approx(0.1 * share, rel=1e-2)
    assert outcome.uncertainty["t_update"] < 0.01


def test_shapes_off_the_grid_are_warned_of(toy_data):
    corners = [[[1e-6, 2e-6], [2e-6, 4e-6]], [[2e-6, 4e-6], [4e-6, 8e-6]]]
    toy_data["gemm"]["sgemm.nt"] = {"m": [1, 2], "n": [1, 2], "k": [1, 2], "seconds": corners}
    outcome = predict(build("lenet"), read_machine(toy_data, "t"), Config(1, 1, 2))
    assert outcome.warnings == ("gemm.sgemm.nt: 4 calls lie off the grid measured on toy; their times are those of "
                                "its edge, scaled by flops",)


def test_crowding_lengthens_only_the_gradient(toy_data):
    alone = predict(build("lenet"), read_machine(toy_data, "t"), Config(2, 2, 4))
    toy_data["contention"] = {"any": {"1": {"gradient": {"alpha": 1.0}}, "4": {"gradient": {"alpha": 2.5}}}}
    machine = read_machine(toy_data, "t")
    crowded = predict(build("lenet"), machine, Config(2, 2, 4, ranks_per_host=2))
    assert crowded.gpu_terms["compute_gradient"] == pytest.approx(2.5 * alone.gpu_terms["compute_gradient"])
    assert crowded.gpu_terms["load_image"] == alone.gpu_terms["load_image"]


def test_crowding_lengthens_everything_where_devices_are_the_hosts_cores(toy_data):
    toy_data["device"]["kind"], toy_data["threads"] = "host", 1
    alone = predict(build("lenet"), read_machine(toy_data, "t"), Config(2, 2, 4))
    toy_data["contention"] = {"any": {"3": {group: {"alpha": 2.0} for group in CROWDED}}}
    crowded = predict(build("lenet"), read_machine(toy_data, "t"), Config(2, 2, 4))  # two devices and an update thread
    assert crowded.t_gpu == pytest.approx(2 * alone.t_gpu)
    assert crowded.t_update == pytest.approx(2 * alone.t_update)
    assert crowded.staleness.mean == pytest.approx(alone.staleness.mean)


def test_each_call_of_a_crowded_piece_costs_something(toy_data):
    """With 1 s a call and nothing else, pieces are the calls that are counted."""
    toy_data["device"]["kind"], toy_data["threads"] = "host", 1
    toy_data["contention"] = {"any": {"3": {group: {"alpha": 0.0, "beta": 1.0} for group in CROWDED}}}
    machine, spec = read_machine(toy_data, "t"), build("lenet")
    gradient = gradient_time(spec, machine, 4)
    pieces = pieces_of(spec, machine, 4, 4, gradient, machine.busy(2, 1))
    assert pieces.compute == gradient.launches
    assert (pieces.load, pieces.deform, pieces.fetch, pieces.old, pieces.publish) == (0, 4, 1, 1, 0)
    assert pieces.reduce == 3  # four nodes


def test_updates_that_wait_for_a_gradient_have_one_of_each_node(toy):
    waiting = predict(build("lenet"), toy, Config(2, 2, 4000, min_gradients=1))
    assert 0 < waiting.wait < waiting.t_update
    assert waiting.minibatch.values.min() == 8000
    assert waiting.minibatch.mean == pytest.approx(2 * 2 * 4000 * waiting.t_update / waiting.t_gpu)
    assert sum(waiting.update_terms.values()) + waiting.wait == pytest.approx(waiting.t_update)
    one = predict(build("lenet"), toy, Config(1, 1, 4000, min_gradients=1))
    assert one.t_update == pytest.approx(one.t_gpu)
    assert (one.minibatch.values.tolist(), one.minibatch.probabilities.tolist()) == ([4000], [1.0])


def test_memory_is_the_engines_plan_without_momentum(toy):
    outcome = predict(build("lenet"), toy, Config(1, 1, 4))
    parameters = 431_080
    assert outcome.memory_bytes > 2 * 4 * parameters
    assert outcome.memory_limit == 10**9
    assert predict(build("lenet"), toy, Config(1, 1, 8)).memory_bytes > outcome.memory_bytes


def test_a_constant_that_the_machine_lacks_is_named(toy_data):
    del toy_data["kernels"]["max_pool"]
    with pytest.raises(UsageError, match=r"^machine toy: kernels\.max_pool: expected alpha and beta, got nothing$"):
        predict(build("lenet"), read_machine(toy_data, "t"), Config(1, 1, 1))


@pytest.mark.parametrize("field", ["nodes", "devices", "subbatch", "images", "ranks_per_host"])
@pytest.mark.parametrize("count", [0, 10**30, 1.5])
def test_counts_out_of_bounds_are_named(field, count):
    option = field.replace("_", "-")
    with pytest.raises(UsageError, match=f"^{option}: expected a whole number from 1 to [0-9]+, got {count}$"):
        Config(**({"nodes": 1, "devices": 1, "subbatch": 1} | {field: count}))


def test_the_papers_reference_run_lies_within_the_estimates_uncertainty():
    """TSUBAME2.5, 16 nodes x 3 GPUs, sub-batch 5: the mean mini-batch was 138, T_Update/T_GPU = 0.575."""
    outcome = predict(build("cnn-a"), load_machine("tsubame2.5"), Config(16, 3, 5))
    assert abs(outcome.minibatch.mean / 138 - 1) < outcome.uncertainty["minibatch"]


def test_distribution_quantiles_and_counts():
    counted = Distribution.counted(np.array([4, 2, 2, 9]))
    assert counted.values.tolist() == [2, 4, 9]
    assert counted.probabilities.tolist() == [0.5, 0.25, 0.25]
    assert [counted.quantile(part) for part in (0.0, 0.5, 0.75, 1.0)] == [2, 2, 4, 9]
    assert counted.mean == 4.25
    weighted = Distribution.counted(np.array([1, 5]), np.array([3, 1]))
    assert weighted.probabilities.tolist() == [0.75, 0.25]
