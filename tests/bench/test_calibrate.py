"""Calibration: fits that know their constants again, grids that refine themselves, and a tiny real machine file."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest
import typer
from sprint.bench import calibrate, commands_calibrate, others
from sprint.bench.fit import fit_allreduce, fit_curve, fit_kernel, fit_linear, relative_spread
from sprint.bench.gauge import Gauge, elapsed
from sprint.bench.grids import Grid, measure_table
from sprint.bench.loop_gauge import measure_images, measure_steps
from sprint.bench.machine import ANY, PER_PARAMETER
from sprint.bench.machine_file import load_machine
from sprint.bench.model import predict
from sprint.bench.needs import Product, kernel_cases, products
from sprint.bench.outcome import Config
from sprint.bench.ranks_gauge import group_sizes, measure_allreduce
from sprint.bench.work import GradientWork
from sprint.distributed.ranks import Single
from sprint.engine.errors import UsageError
from sprint.engine.nets import build
from sprint.kernels.host import HostDevice
from typer.testing import CliRunner

SIZES = np.geomspace(1e3, 1e7, 9)


@pytest.fixture(scope="module")
def device():
    return HostDevice(threads=1)


# ---- fits

def noisy(times, rng, disturbed):
    """Times with 1% of noise, some of them made much longer by something else."""
    times = times * (1 + 0.01 * rng.standard_normal(len(times)))
    times[disturbed] *= rng.uniform(2, 6, len(disturbed))
    return times


@pytest.mark.parametrize(("alpha", "beta"), [(2e-9, 5e-5), (3e-10, 1e-6), (1e-9, 0.0), (0.0, 1e-5)])
def test_a_line_is_known_again_among_disturbed_times(rng, alpha, beta):
    found = fit_linear(SIZES, noisy(alpha * SIZES + beta, rng, [2, 6]))
    assert found.alpha == pytest.approx(alpha, rel=0.03, abs=beta * 1e-9)
    assert found.beta == pytest.approx(beta, rel=0.05, abs=alpha * 100)
    assert found.residual < 0.03


def test_constants_are_never_negative(rng):
    steep = fit_linear([1.0, 2.0, 3.0, 4.0], [0.1, 1.0, 2.0, 3.0])  # plain least squares has beta = -0.9
    assert (steep.alpha > 0, steep.beta) == (True, 0.0)
    falling = fit_linear([1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0])
    assert (falling.alpha, falling.beta > 0) == (0.0, True)


def test_one_size_alone_gives_no_constant_part():
    assert fit_linear([50.0, 50.0], [1e-3, 1e-3]).time(100) == pytest.approx(2e-3)


def test_a_bent_curve_keeps_its_points_and_a_straight_one_does_not(rng):
    bent = np.where(SIZES < 1e5, 1e-10, 5e-10) * SIZES + 1e-6
    curve = fit_curve(SIZES, bent)
    np.testing.assert_allclose(curve.time(SIZES), bent, rtol=1e-9)
    assert bent[4] < curve.time(math.sqrt(SIZES[4] * SIZES[5])) < bent[5]
    assert fit_curve(SIZES, noisy(2e-9 * SIZES + 1e-5, rng, [])).points == ()


def test_a_kernel_that_works_row_by_row_is_known_again():
    sizes = [(rows * n, rows) for rows in (500.0, 1024.0) for n in (2, 4, 8)]
    found = fit_kernel(sizes, [3e-9 * elements + 1e-8 * rows + 1e-5 for elements, rows in sizes])
    assert (found.alpha, found.gamma, found.beta) == pytest.approx((3e-9, 1e-8, 1e-5))
    assert found.time(1500, 500) == pytest.approx(1.95e-5)
    alike = fit_kernel([(2 * rows, rows) for _, rows in sizes], [rows for _, rows in sizes])  # one row length only
    assert (alike.alpha, alike.gamma) == pytest.approx((0.5, 0.0))


def test_the_allreduce_is_known_again(rng):
    nodes, counts = np.repeat([1, 2, 4, 8, 16], 4), np.tile([1e4, 1e5, 1e6, 1e7], 5)
    times = (1e-9 * np.log2(nodes) + 2e-9) * counts + 3e-5 * np.log2(nodes)
    found = fit_allreduce(nodes, counts, noisy(times, rng, [5, 11]))
    assert found.alpha == pytest.approx(1e-9, rel=0.1)
    assert found.beta == pytest.approx(2e-9, rel=0.1)
    assert found.latency == pytest.approx(3e-5, rel=0.15)


def test_spread_does_not_mind_outliers(rng):
    values = 5 + 0.1 * rng.standard_normal(200)
    values[:20] = 50
    assert relative_spread(values) == pytest.approx(0.02, rel=0.25)


# ---- grids of products

def plain(m, n, k, path="sgemm.nn"):
    return Product(path, (float(m), float(n), float(k)))


def trilinear(product):
    """A time with the eight coefficients of the paper's form."""
    m, n, k = product.sizes
    return 1e-9 * m * n * k + 2e-8 * m * n + 3e-8 * m * k + 1e-7 * n + 1e-6 * k + 1e-5


WANTED = [plain(20, 700, 50), plain(32, 90, 25), plain(100, 3000, 300)]


def test_a_trilinear_time_needs_only_the_corners_and_comes_out_exactly():
    calls = []
    table = measure_table(WANTED, lambda p: calls.append(p.sizes) or trilinear(p), limit_s=1e9)
    assert all(math.log2(size) % 1 == 0 for line in (table.m, table.n, table.k) for size in line)
    corners = {call for call in calls if all(math.log2(size) % 1 == 0 for size in call)}
    assert len(calls) == len(corners) + len(WANTED)  # each corner once, each check once
    for product in (*WANTED, plain(25, 600, 40)):
        seconds, outside = table.time(*map(np.array, product.sizes))
        assert not outside
        assert seconds == pytest.approx(trilinear(product), rel=1e-3)
    assert table.residual == pytest.approx(0, abs=1e-3)


def test_a_cell_is_refined_where_a_check_is_far_off():
    def stepped(product):  # another kernel beyond n = 600, 40% slower
        return trilinear(product) * (1.4 if product.sizes[1] > 600 else 1.0)

    table = measure_table(WANTED, stepped, limit_s=1e9)
    assert 700 in table.n
    assert float(table.time(*map(np.array, WANTED[0].sizes))[0]) == pytest.approx(stepped(WANTED[0]), rel=1e-3)


def test_a_check_that_something_disturbed_is_measured_again():
    seen = set()

    def disturbed(product):
        first = product.sizes == WANTED[0].sizes and product.sizes not in seen
        seen.add(product.sizes)
        return trilinear(product) * (3.0 if first else 1.0)

    assert 700 not in measure_table(WANTED, disturbed, limit_s=1e9).n


def test_calls_beyond_the_limit_are_not_made_and_the_table_says_so():
    longest = []
    table = measure_table(WANTED, lambda p: longest.append(trilinear(p)) or longest[-1], limit_s=trilinear(WANTED[0]))
    assert max(longest) < trilinear(WANTED[2])
    assert table.time(*map(np.array, WANTED[2].sizes))[1]


def test_a_new_line_holds_what_was_there_before():
    grid = Grid([[1, 2], [1, 2], [1, 4]])
    for m in (1, 2):
        for n in (1, 2):
            for k in (1, 4):
                grid.put((m, n, k), trilinear(plain(m, n, k)))
    before = grid.table().time(np.array(1.3), np.array(1.6), np.array(3.0))[0]
    grid.put((1.5, 1.0, 2.0), trilinear(plain(1.5, 1.0, 2.0)))
    assert grid.seconds.shape == (3, 2, 3)
    assert np.isfinite(grid.seconds).all()
    assert grid.table().time(np.array(1.3), np.array(1.6), np.array(3.0))[0] == pytest.approx(before, rel=1e-3)


# ---- what must be measured

@pytest.mark.parametrize(("net", "size", "conv"), [("cnn-a", 24, "auto"), ("lenet", 20, "explicit"),
                                                   ("mlp", 5, "auto")])
def test_everything_that_the_model_counts_is_measured_at_its_real_sizes(device, net, size, conv):
    spec, batches = build(net, size, 0.2, 10), [3, 70]
    found = {(product.path, product.sizes) for product in products(spec, device, batches, conv, None)}
    kernels = kernel_cases(spec, device, batches, conv, None)
    for batch in batches:
        for call in (c for part in GradientWork(spec, batch, conv, device, None).parts for way in part for c in way):
            if call.times > 0 and call.group == "gemm":
                assert (call.name, tuple(float(s) for s in call.sizes)) in found
            elif call.times > 0:
                assert (float(call.sizes[0]), float(call.rows)) in kernels[call.name]


def test_a_convolution_keeps_its_images_at_other_sizes(device):
    spec = build("cnn-a", 24, 0.5, 10)
    for product in products(spec, device, [3], "implicit", None):
        if product.shape is None:
            continue
        assert product.actual == product.sizes
        other = product.resized(tuple(2 * size for size in product.sizes))
        assert other.shape.R == product.shape.R
        assert (other.shape.H, other.shape.W) == (product.shape.H, product.shape.W)
        assert max(abs(math.log2(a / b)) for a, b in zip(other.actual, other.sizes, strict=True)) < 0.3
        small = product.resized(tuple(size / 64 if size > 500 else size for size in product.sizes))
        assert max(abs(math.log2(a / b)) for a, b in zip(small.actual, small.sizes, strict=True)) < 1.2


def test_time_scales_to_the_sizes_asked_for(device, monkeypatch):
    product = next(p for p in products(build("cnn-a", 24, 0.5, 10), device, [3], "implicit", None) if p.shape)
    odd = product.resized((product.sizes[0], product.sizes[1] * 1.1, product.sizes[2]))
    gauge = Gauge(device, 0.0)
    monkeypatch.setattr(gauge, "time", lambda call, hot=None: 1.0)
    assert gauge.product(odd) == pytest.approx(np.prod(odd.sizes) / np.prod(odd.actual))


def test_one_thread_is_timed_by_its_own_clock_and_more_by_the_walls(device):
    assert elapsed(device, lambda: time.sleep(0.02)) < 0.01
    assert elapsed(HostDevice(threads=2), lambda: time.sleep(0.02)) >= 0.02


# ---- steps, images, ranks

def test_steps_cost_more_with_more_parameters(device):
    steps = measure_steps(device, [50_000, 100_000, 400_000], 0.02)
    assert set(steps) == {*PER_PARAMETER, "take_gradient", "clear_gradient"}
    for name in ("fetch_weights", "update_gradient", "update_old_weights", "update_momentum"):
        assert 0 < steps[name].time(50_000) < steps[name].time(400_000) < 0.5
    assert steps["update_weights"].time(400_000) < steps["update_momentum"].time(400_000)  # weights are traded


def test_images_are_handed_over_and_deformed(device):
    seen = measure_images(device, build("lenet", 28, 0.2, 10), [4, 16])
    assert sorted(seen) == [4 * 28 * 28, 16 * 28 * 28]
    assert all(min(load, deform) > 0 for load, deform in seen.values())


def test_groups_are_powers_of_two_and_everybody():
    assert [group_sizes(size) for size in (1, 2, 6, 16)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16]]


def test_one_rank_alone_can_only_guess_what_others_would_cost():
    found = measure_allreduce(Single(), [20_000, 200_000], 0.01)
    assert found.residual == 1.0
    assert found.alpha == pytest.approx(2 * found.beta)


# ---- the whole

@pytest.fixture(scope="module")
def app():
    app = typer.Typer()
    app.command()(commands_calibrate.calibrate)
    return app


def invoke(app, *words):
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})
    if result.exception:
        raise result.exception
    return result.output


TINY = ["--nets", "lenet", "--image-size", "16", "--width", "0.2", "--classes", "10", "--device", "host",
        "--device-threads", "1", "--quick"]


def test_a_tiny_real_calibration_predicts_its_net(app, tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "QUICK", calibrate.Effort(0.002, 0.01, 0.5, 100_000))
    monkeypatch.setattr(others.Watch, "share", lambda watch, comm: 0.12)
    output = invoke(app, "-o", str(tmp_path / "here.json"), *TINY, "--subbatch", "1,4")
    assert "wrote" in output and output.splitlines()[-1].endswith("other programs took 12% of the processors meanwhile")
    assert "a gradient against its kernels, by busy devices 1: x " in output
    machine = load_machine(tmp_path / "here.json")
    assert (machine.name, machine.threads, machine.device.kind) == ("here", 1, "host")
    assert sorted(machine.contention[ANY]) == list(range(1, machine.device.per_node + 2))
    assert "guess" in machine.sources["allreduce"]
    assert "measured by sprint calibrate" in machine.sources["kernels"]
    outcome = predict(build("lenet", 16, 0.2, 10), machine, Config(1, 1, 4))
    assert 1e-5 < outcome.gpu_terms["compute_gradient"] < 0.5
    assert outcome.warnings == ()
    kept = json.loads((tmp_path / "here.json").read_text())
    assert {"implicit.forward", "implicit.backward_filter", "tiles.nn", "tiles.nt"} <= set(kept["gemm"])


@pytest.mark.parametrize(("words", "message"), [
    (["--nets", "lenet,vgg"], "^net: expected one of "),
    (["--nets", "lenet:20,cnn-a:big"], "^nets: expected NET or NET:PIXELS, got 'big' as pixels"),
    (["--subbatch", "0..3"], "^subbatch: expected a whole number from 1 to 100000, got 0"),
    (["--conv-algo", "fft"], "^conv-algo: expected one of "),
    (["--device-threads", "0"], "^device-threads: expected .*, got 0"),
    (["-o", "/nowhere/m.json"], "^output: expected a file that can be written"),
])
def test_bad_input_names_its_option(app, tmp_path, words, message):
    with pytest.raises(UsageError, match=message):
        invoke(app, "-o", str(tmp_path / "m.json"), *TINY, *words)
