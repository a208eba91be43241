"""Crowding: whole gradients and real loops are timed, and what others make of each group of pieces is known again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sprint.bench import crowding
from sprint.bench.crowd import Loops, Trial, gradients_at_once, mean_of_all, median_loops, run_loops
from sprint.bench.crowd_fit import Sight, fit_contention, fit_crowd
from sprint.bench.machine import ANY, CROWDED, Linear
from sprint.bench.machine_file import read_machine
from sprint.bench.model import predict
from sprint.bench.outcome import Config
from sprint.bench.pieces import gradient_time
from sprint.distributed.ranks import Single
from sprint.distributed.telemetry import UPDATE_TERMS, WORKER_TERMS
from sprint.engine.nets import build
from sprint.kernels.host import HostDevice


@pytest.fixture(scope="module")
def device():
    return HostDevice(threads=1)


TRIAL = Trial(build("lenet", 16, 0.2, 10), 2, "implicit")


def test_gradients_of_several_devices_are_timed_at_once(device):
    times = gradients_at_once([device, HostDevice(1, threads=1)], TRIAL, 7)
    assert times.shape == (14,)
    assert (times > 1e-5).all()


def test_a_failing_gradient_ends_the_measurement(device):
    class Broken(HostDevice):
        def launch(self, *args, **options):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        gradients_at_once([device, Broken(1, threads=1)], TRIAL, 3)


def test_the_loops_tell_their_turns(device):
    loops = run_loops(Single(), [device, HostDevice(1, threads=1)], TRIAL, 20)
    assert loops.t_gpu > float(np.min(gradients_at_once([device], TRIAL, 5)))
    assert 0 < loops.update["allreduce"] < loops.t_update


def test_a_rank_that_had_no_turn_does_no_harm():
    class Two(Single):
        def gather_all(self, values):
            return np.array([values, [0.0] * len(values)])

    rows = np.array([[1.0, 2.0], [3.0, 5.0]])
    assert mean_of_all(Two(), rows) == [2.0, 3.5] == mean_of_all(Single(), rows)


def test_a_disturbed_run_of_the_loops_does_no_harm():
    runs = [Loops(dict.fromkeys(WORKER_TERMS, x), dict.fromkeys(UPDATE_TERMS, 2 * x)) for x in (1.0, 50.0, 1.5)]
    middle = median_loops(runs)
    assert (middle.t_gpu, middle.t_update) == (1.5 * len(WORKER_TERMS), 3.0 * len(UPDATE_TERMS))


@pytest.fixture
def host(toy_data):
    """The toy machine as a host of one-thread devices, with fast kernels against what a launch costs there."""
    toy_data["device"]["kind"], toy_data["threads"] = "host", 1
    return read_machine(toy_data, "toy.json")


def crowded(machine, factor, delay):
    """That machine with factor times the seconds everywhere, and `delay` s a call."""
    counts = {busy: dict.fromkeys(CROWDED, Linear(busy * factor, busy * delay)) for busy in (2.0, 3.0)}
    return replace(machine, contention={ANY: counts})


def as_loops(machine, trial, devices):
    """What the loops would take if the model were right."""
    outcome = predict(trial.spec, machine, Config(1, devices, trial.subbatch))
    return Loops(outcome.gpu_terms, outcome.update_terms | {"barrier": 0.0})


def test_factor_and_delay_of_each_group_are_known_again(host):
    """From loops whose times are the model's own, for two nets and three sub-batches."""
    truth = crowded(host, 0.7, 3e-5)
    trials = [Trial(spec, n, "explicit") for spec in (TRIAL.spec, build("cnn-a", 28)) for n in (2, 8, 32)]
    found = fit_contention(host, [Sight(1, devices, trial, as_loops(truth, trial, devices))
                                  for devices in (1, 2) for trial in trials])
    assert set(found) == {ANY, "lenet:16", "cnn-a:28"}
    for busy in (2.0, 3.0):  # one or two devices, and the update thread
        for group in ("gradient", "copies", "update"):
            assert found[ANY][busy][group].alpha == pytest.approx(0.7 * busy, rel=0.05)
            assert found[ANY][busy][group].beta == pytest.approx(3e-5 * busy, rel=0.05)
    again = predict(TRIAL.spec, replace(host, contention=found), Config(1, 2, 8))
    expected = predict(TRIAL.spec, truth, Config(1, 2, 8))
    assert (again.t_gpu, again.t_update) == pytest.approx((expected.t_gpu, expected.t_update), rel=0.02)


def test_what_is_too_much_alike_tells_only_a_factor():
    alike = fit_crowd([(1.0, 10.0, 2.9), (2.0, 19.0, 6.0), (3.0, 30.0, 9.3)])
    assert (alike.alpha, alike.beta) == pytest.approx((3.0, 0.0))
    assert alike.residual == pytest.approx(1.4826 * 0.1 / 3)
    assert fit_crowd([(1.0, 10.0, 3.0)]) == Linear(3.0)
    found = fit_crowd([(1.0, 10.0, 4.0), (2.0, 10.0, 6.0), (3.0, 10.0, 8.0)])
    assert (found.alpha, found.beta) == pytest.approx((2.0, 0.2))


def test_crowding_is_measured_on_gradients_and_on_the_loops(device, host, monkeypatch):
    """Faked times: kernels add up to half of a gradient, and the loops are as slow as a crowded machine's."""
    truth = crowded(host, 1.5, 0.0)
    modelled = float(gradient_time(TRIAL.spec, host, 2).total)
    monkeypatch.setattr(crowding, "gradients_at_once", lambda devices, trial, turns: np.full(5, 2 * modelled))
    monkeypatch.setattr(crowding, "usable_cores", lambda: 2)
    monkeypatch.setattr(crowding, "run_loops", lambda comm, devices, trial, turns: as_loops(truth, trial, len(devices)))
    found = crowding.measure_crowd(Single(), device, [TRIAL.spec], [2], host, "explicit", 0.1)
    gradients = {busy: groups["gradient"].alpha for busy, groups in found.contention["lenet:16"].items()}
    assert gradients == pytest.approx({1: 2.0, 2: 3.0, 3: 4.5})  # an update thread counts as a device
    assert found.jitter == 0
    assert found.off == pytest.approx([0.0])


def test_large_nets_have_a_stand_in_in_the_loops(device):
    small, large = build("lenet", 16), build("cnn-a")
    assert [(t.spec, t.subbatch) for t in crowding._trials([small, large], [1, 2], "auto")] == [(small, 1), (small, 2)]
    assert {(t.spec.name, t.spec.in_shape[1]) for t in crowding._trials([large], [1], "auto")} == {("cnn-a", 28)}
