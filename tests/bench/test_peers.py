"""The comparison with PyTorch: fair turns, plain ratios, losses that must agree, processes that answer or are named."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from sprint.__main__ import run
from sprint.bench.peers import command, compare, own_time, pytorch, tables, worker
from sprint.bench.peers.cases import CONTENDERS, OURS, THEIRS, Case, parse
from sprint.bench.peers.child import Child
from sprint.bench.peers.ours import Sprint
from sprint.bench.peers.result import CaseResult, LayerTimes, Settings
from sprint.engine.errors import UsageError
from sprint.kernels.conv_choice import CHOICES
from sprint.kernels.host import HostDevice

CASE = Case("lenet", 28, 3, "host:0", 1)
PLAIN, LAST = THEIRS


def times(**ms):
    """Milliseconds of all contenders from those of the first, of PyTorch's default and of channels_last."""
    names = {"ours": OURS, "plain": PLAIN, "last": LAST}
    return {names[key]: value for key, value in ms.items()}


def result(**changes):
    steps = times(ours={"step": [10.0, 20.0, 10.0]}, plain={"step": [30.0, 20.0, 40.0]},
                  last={"step": [15.0, 18.0, 12.0]})
    layer = LayerTimes("conv1", times(ours={"forward": [2.0], "backward": [1.0]},
                                      plain={"forward": [1.0], "backward": [3.0]},
                                      last={"forward": [4.0], "backward": [5.0]}))
    memory = {name: {"peak": mib << 20, "growth": (mib - 50) << 20} for name, mib in zip(CONTENDERS, (100, 150, 160),
                                                                                       strict=True)}
    values = {"case": CASE, "versions": dict.fromkeys(CONTENDERS, "1.0"), "steps": steps, "memory": memory,
              "losses": times(ours=[6.0, 3.0], plain=[6.0, 3.0003], last=[6.0006, 3.0]), "layers": [layer],
              "own_time": {"between_ms": 0.1, "python_ms": 0.05, "step_ms": 20.0}}
    return CaseResult(**{**values, **changes})


def test_ratios_are_medians_of_rounds_against_the_better_layout():
    seen = result()
    assert seen.peer == LAST and seen.ratio == 1.2  # of 1.5, 0.9, 1.2
    assert seen.images_per_s(OURS) == 300 and seen.images_per_s(LAST) == 200
    assert seen.layers[0].ratio("forward") == 0.5 and seen.layers[0].ratio("backward") == 3  # default is better here
    assert seen.loss_difference == pytest.approx(1e-4, rel=1e-2) and seen.losses_agree
    assert seen.own_share == pytest.approx(0.005)


def test_missed_goals_are_named_with_their_figures():
    assert result().missed() == ["conv1 forward 0.50x of 0.9x"]
    slow = result(own_time={"between_ms": 0.0, "python_ms": 1.0, "step_ms": 1.0}, layers=[],
                  steps=times(ours={"step": [20.0]}, plain={"step": [19.0]}, last={"step": [30.0]}),
                  memory=dict(zip(CONTENDERS, ({"peak": p, "growth": 0} for p in (3, 2, 9)), strict=True)))
    assert slow.missed() == ["step 0.95x of at least 1x", "peak memory 1.50 of PyTorch's",
                             "time outside kernels 5.0% of below 2%"]


@pytest.mark.parametrize("ours", [[6.0, 3.01], [6.0, np.nan], [np.inf, 3.0]])
def test_losses_that_differ_or_are_no_numbers_do_not_agree(ours):
    assert not result(losses=times(ours=ours, plain=[6.0, 3.0], last=[6.0, 3.0])).losses_agree


class Scripted:
    """Stands for a Child: a call takes `ms`; notes the order of questions."""

    def __init__(self, name, ms, asked):
        self.name, self.ms, self.asked = name, ms, asked

    def ask(self, question, **arguments):
        self.asked.append((self.name, arguments["count"]))
        return {"forward": self.ms / 4, "backward": self.ms * 3 / 4}


def test_turns_alternate_and_take_as_long_for_everyone():
    asked = []
    children = {name: Scripted(name, ms, asked) for name, ms in (("a", 10.0), ("b", 35.0), ("c", 5000.0))}
    found = compare.take_turns(children, Settings(rounds=4, seconds=0.1), "layer", name="conv1")
    assert asked[:3] == [("a", 1), ("b", 1), ("c", 1)]
    assert [name for name, _ in asked[3:]] == [*"abc", *"bca", *"cab", *"abc"]
    assert {pair for pair in asked[3:]} == {("a", 10), ("b", 3), ("c", 1)}
    assert found["b"] == {"forward": [8.75] * 4, "backward": [26.25] * 4}


@pytest.mark.parametrize("text", ["cnn-a", "cnn-a:92", "cnn-a:92:x", "cnn-a:92:0", "cnn-z:92:1", "lenet:3:1"])
def test_a_wrong_case_is_a_wrong_use(text):
    with pytest.raises(UsageError):
        parse(text)


def test_a_process_trains_as_a_network_here_does():
    with Child(OURS, CASE) as child:
        losses, memory = child.ask("losses", steps=3), child.ask("memory")
        os.kill(child._process.pid, signal.SIGINT)  # a Ctrl-C in the terminal meets the parent alone
        steps, layer = child.ask("steps", count=2), child.ask("layer", name="conv2", count=2)
        process = child._process
    here = worker.Worker(Sprint(CASE))
    assert losses == here.losses(3) and losses[0] > losses[2] > 0
    assert 3 * here.contender.network.weights.flat.nbytes < memory["growth"] < memory["peak"]
    assert steps["step"] > 0 and layer["forward"] > 0 and layer["backward"] > 0
    assert process.poll() == 0  # closed politely


def test_timed_steps_leave_the_weights_where_they_are():
    here = worker.Worker(Sprint(CASE))
    before = here.contender.network.weights.flat.copy()
    here.steps(20)
    assert np.max(abs(here.contender.network.weights.flat - before)) < 1e-6


def test_the_gradient_to_the_images_is_left_out_of_the_first_layer_only(monkeypatch):
    counted = []
    monkeypatch.setattr(HostDevice, "native", lambda self, name, *rest: counted.append(name) or 0)
    for name, passes in (("conv1", 2), ("conv2", 3)):
        forward, backward = Sprint(CASE, conv_algo="implicit").layer(name)
        counted.clear()
        forward()
        backward()
        assert len(counted) == passes


def test_a_failure_in_a_process_is_told_in_its_words():
    unfit = replace(CASE, threads=0)
    with Child(OURS, unfit) as child, pytest.raises(RuntimeError, match=r"expected sprint .*ValueError: .* threads"):
        child.ask("memory")
    with Child(OURS, CASE) as child, pytest.raises(RuntimeError, match=r"'layer', got KeyError: 'conv9'"):
        child.ask("layer", name="conv9", count=1)


def test_a_dead_or_silent_process_is_named():
    with Child(OURS, CASE) as child:
        child.ask("memory")
        os.kill(child._process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"'memory', got exit -9"):
            child.ask("memory")
    with Child(OURS, CASE, limit_s=0.01) as child, pytest.raises(RuntimeError, match=r"within 0.01 s, got nothing"):
        child.ask("losses", steps=1)


def test_own_time_computes_nothing_on_the_idle_device_and_remembers_no_choice(monkeypatch):
    monkeypatch.setattr(own_time, "STEPS", 3)
    worker.Worker(Sprint(CASE)).losses(1)  # the choices of this shape are known now
    before = CHOICES.table()
    seen = own_time.own_time(CASE)
    assert CHOICES.table() == before
    assert seen.python_ms > 0 and 0 < seen.between_ms < seen.step_ms
    idle = Sprint(CASE, own_time.Idle(threads=1), "implicit")
    idle.build()
    idle.network.grads.flat.fill(np.nan)
    idle.step(1.0)
    assert np.isnan(idle.network.grads.flat).all()


@pytest.fixture
def compared(monkeypatch):
    """Results of compare() are made up; `compared.results` may be changed."""
    class Compared:
        results = result()
        asked: list = []  # noqa: RUF012

    def stand_in(case, settings, report):
        Compared.asked.append((case, settings))
        return replace(Compared.results, case=case)

    Compared.asked = []
    monkeypatch.setattr(pytorch, "missing", lambda: None)
    monkeypatch.setattr(compare, "compare", stand_in)
    return Compared


def test_tables_and_json(compared, tmp_path, capsys):
    readme, path = tmp_path / "README.md", tmp_path / "p.json"
    readme.write_text("# x\n<!-- peers:begin -->\nold\n<!-- peers:end -->\ny\n")
    cases, pace = ["--case", "lenet:28:3", "--case", "cnn-a:28:2"], ["--rounds", "5", "--seconds", "0.5"]
    files = ["--json", str(path), "--readme", str(readme)]
    assert run(["bench", "peers", *cases, *pace, *files, "--device-threads", "1"]) == 0
    text, out = readme.read_text(), capsys.readouterr().out
    assert "| lenet 28 px, sub-batch 3 | 300.0 | 200.0 (channels_last) | 1.20 | 100 / 50 | 160 / 110 |" in text
    assert "| conv1 | 0.50 / 3.00 | 0.50 / 3.00 |" in text and "old" not in text and "PyTorch 1.0" in text
    assert "missed: lenet 28 px, sub-batch 3: conv1 forward 0.50x of 0.9x" in out
    data = json.loads(path.read_text())
    assert [(c["net"], c["subbatch"], c["times_peer"], c["peer"]) for c in data["cases"]] == [
        ("lenet", 3, 1.2, LAST), ("cnn-a", 2, pytest.approx(1.2), LAST)]
    assert data["settings"] == {"rounds": 5, "seconds": 0.5, "loss_steps": 20} and data["machine"]["threads"] == 1
    assert [(case.net, case.threads, settings.rounds) for case, settings in compared.asked] == [
        ("lenet", 1, 5), ("cnn-a", 1, 5)]


def test_losses_that_disagree_fail_and_leave_the_readme(compared, tmp_path, capsys):
    readme, path = tmp_path / "README.md", tmp_path / "p.json"
    readme.write_text("<!-- peers:begin -->\n<!-- peers:end -->\n")
    compared.results = result(losses=times(ours=[6.0], plain=[6.1], last=[6.0]))
    options = ["--case", "lenet:28:3", "--json", str(path), "--readme", str(readme)]
    assert run(["bench", "peers", *options]) == 1
    assert "expected losses within 0.001 of PyTorch's, got 0.016 (lenet 28 px" in capsys.readouterr().err
    assert "lenet" not in readme.read_text() and json.loads(path.read_text())["cases"]


def test_the_default_is_the_three_sizes_of_cnn_a(compared):
    assert run(["bench", "peers", "--device-threads", "2"]) == 0
    assert [(c.net, c.image_size, c.subbatch, c.threads) for c, _ in compared.asked] == [
        ("cnn-a", 92, 8, 2), ("cnn-a", 196, 8, 2), ("cnn-a", 396, 1, 2)]


def test_a_gpu_compares_without_and_with_tf32():
    class Gpu:
        kind, name, threads = "cuda", "cuda:0", 1

    assert [(case.math, case.device) for case in command._cases(["lenet:28:4"], Gpu())] == [
        ("fp32", "cuda:0"), ("tf32", "cuda:0")]
    assert tables.table([result(case=replace(CASE, math="tf32"), own_time=None)]).row_count == 1


def test_without_pytorch_the_cure_is_told(monkeypatch, capsys):
    monkeypatch.setattr(pytorch.importlib.util, "find_spec", lambda name: None)
    assert run(["bench", "peers"]) == 1
    assert "PyTorch is not installed; pip install 'sprint-cnn[peers]'" in capsys.readouterr().err


@pytest.mark.gpu
def test_our_contender_trains_on_a_gpu():
    there = worker.Worker(Sprint(replace(CASE, device="cuda:0", subbatch=1)))
    here = worker.Worker(Sprint(replace(CASE, subbatch=1)))
    np.testing.assert_allclose(there.losses(2), here.losses(2), rtol=1e-4)
    assert there.memory()["peak"] == there.memory()["growth"] >= 0


@pytest.mark.parametrize("layout", THEIRS)
def test_pytorch_has_the_same_net_weights_and_batch(layout):
    """Losses of 5 steps agree to rounding: batch, weights, layers, gradient, momentum and rate are the same."""
    pytest.importorskip("torch")
    for case in (CASE, Case("cnn-a", 28, 2, "host:0", 1)):
        with Child(layout, case) as child:
            theirs, layer = child.ask("losses", steps=5), child.ask("layer", name="conv2", count=1)
        np.testing.assert_allclose(worker.Worker(Sprint(case)).losses(5), theirs, rtol=1e-5)
        assert layer["forward"] > 0 and layer["backward"] > 0
