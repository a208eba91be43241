"""`sprint train --algorithm sync | sprint` in this process: one rank, one or more workers, the real engine."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from sprint.__main__ import run
from sprint.bench.ceilings import Ceilings
from sprint.distributed.layout import Layout, own_cores, place
from sprint.distributed.opening import next_goal, rules
from sprint.distributed.pictures import BARS, bars
from sprint.distributed.ranks import Single
from sprint.distributed.shares import open_worker, resume_worker
from sprint.distributed.telemetry import UPDATE_TERMS, WORKER_TERMS, Histogram
from sprint.engine import checkpoint, schedule
from sprint.engine.config import TrainConfig
from sprint.engine.errors import UsageError
from sprint.engine.runs import RunFolder
from sprint.engine.session import open_session

SMALL = ["train", "cnn-a", "--data", "digits", "--limit", "97", "--image-size", "16", "--width", "0.25", "--device",
         "host", "--device-threads", "1", "--conv-algo", "explicit", "--log-every", "1", "--lr", "0.002"]
pytestmark = pytest.mark.timeout(100)


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    """Pictures cost more than these runs; one test below has them."""
    if "folder" not in request.node.name:
        monkeypatch.setattr("sprint.engine.curves.curves", lambda *_arguments: b"")
        monkeypatch.setattr("sprint.distributed.pictures._bars", lambda *_arguments: b"")


def train(capsys, path, *options):
    """Train SMALL into `path`; returns (exit code, standard output, standard error)."""
    code = run([*SMALL, "--out", str(path), *map(str, options)])
    return code, *capsys.readouterr()


def last(path):
    return checkpoint.load(checkpoint.find(path))


def flat(saved):
    return np.concatenate([array.ravel() for array in saved.weights.values()])


def summary(path):
    return json.loads((path / "summary.json").read_text())


# ---- what a run leaves ------------------------------------------------------------------------------------------


def test_an_asynchronous_run_leaves_its_whole_folder(capsys, tmp_path):
    code, out, err = train(capsys, tmp_path / "r", "--algorithm", "sprint", "--devices", 2, "--subbatch", 8,
                           "--epochs", 2, "--gradient-form", "sum", "--lr", 0.0005)
    assert (code, err) == (0, "")
    for words in ("1 rank with 2 workers", "host:0, host:1, 1 thread each", "the gradient is the sum over",
                  "staleness unbounded", "16 samples in one gradient of every worker", "top-1"):
        assert words in out
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert config["config"]["algorithm"] == "sprint" and config["config"]["device_threads"] == 1
    assert config["job"] | {"cores": 0, "hosts": []} == {
        "ranks": 1, "hosts": [], "layout": [{"rank": 0, "workers": 2, "subbatch": 8}], "minibatch": 16, "images": 97,
        "gradient_form": "sum", "devices": ["host:0", "host:1"], "threads": 1, "cores": 0,
        "transport": "host"}
    for name in ("curves.png", "staleness.png", "minibatch.png"):
        assert (tmp_path / "r" / name).read_bytes().startswith(b"\x89PNG")
    check_metrics(RunFolder(tmp_path / "r").metrics(), summary(tmp_path / "r"))
    check_trace(json.loads((tmp_path / "r" / "trace.json").read_text()), summary(tmp_path / "r"))


def check_metrics(records, ended):
    assert (ended["ranks"], ended["workers"], ended["algorithm"], ended["gradient_form"]) == (1, 2, "sprint", "sum")
    assert ended["test_images"] == 97 and ended["samples"] >= 2 * 97 and ended["images_per_s"] > 0
    steps = [r["step"] for r in records]
    assert steps == sorted(steps) and steps[-1] == ended["steps"] and records[-1]["samples"] == ended["samples"]
    assert len(steps) == len(set(steps)) and all(math.isfinite(r["loss"]) and r["minibatch"] > 0 for r in records)
    tested = [r for r in records if "top1" in r]
    assert len(tested) == 2 and tested[0]["samples"] >= 97
    final = tested[-1]
    assert final["minibatch_histogram"]["mean"] * ended["steps"] == pytest.approx(ended["samples"])
    assert final["staleness_histogram"]["mean"] == pytest.approx(ended["staleness"])
    assert final["staleness_histogram"]["largest"] == ended["staleness_largest"]
    assert tuple(final["worker_ms"]) == WORKER_TERMS and tuple(final["update_ms"]) == UPDATE_TERMS
    for name in ("fetch_weights", "load_image", "deform_image", "compute_gradient", "compute_update_val"):
        assert final["worker_ms"][name] > 0, name
    for name in ("sum_gradient", "update_old_weights", "add_momentum", "allreduce", "update_weights"):
        assert final["update_ms"][name] > 0, name


def check_trace(events, ended):
    """Every gradient has an arrow from the publication of its weights to the update that used it."""
    gradients = [e for e in events if e.get("cat") == "gradient"]
    begins = {e["id"]: e for e in events if e.get("ph") == "s"}
    ends = {e["id"]: e for e in events if e.get("ph") == "f"}
    assert len(gradients) == len(begins) == len(ends) > 10
    for number, begin in begins.items():
        assert begin["ts"] < ends[number]["ts"]
    late = [e["args"]["staleness"] for e in gradients]
    assert np.mean(late) == pytest.approx(ended["staleness"]) and {e["tid"] for e in gradients} == {1, 2}
    for e in gradients:
        version = int(e["name"].rpartition(" ")[2])
        assert e["args"]["used_by"] - 1 - version == e["args"]["staleness"] and e["dur"] > 0


def test_sync_is_the_local_run_on_the_union_of_the_sub_batches(capsys, tmp_path):
    """97 images in mini-batches of 24: both have a last one of 1 image, which here is one worker's alone."""
    common = ["--steps", 10, "--augment", "--schedule", "warmup:4+cosine"]
    assert train(capsys, tmp_path / "local", *common, "--subbatch", 24)[0] == 0
    code, out, _ = train(capsys, tmp_path / "sync", *common, "--algorithm", "sync", "--devices", 3, "--subbatch", 8)
    assert code == 0 and "sync: one gradient of every worker an update, mini-batch 24" in out
    one, three = ({r["step"]: r for r in RunFolder(tmp_path / name).metrics()} for name in ("local", "sync"))
    assert set(three) >= {5, 10} and set(three) <= set(one)
    for step, record in three.items():
        assert record["lr"] == pytest.approx(one[step]["lr"]) and record["staleness"] == 0
    for key in ("test_loss", "top1"):
        assert [three[step][key] for step in (5, 10)] == pytest.approx([one[step][key] for step in (5, 10)], rel=1e-5)
    assert three[10]["minibatch_histogram"]["counts"][1] == 2 and three[10]["minibatch_histogram"]["counts"][24] == 8
    a, b = last(tmp_path / "local"), last(tmp_path / "sync")
    assert np.abs(flat(a) - flat(b)).max() <= 1e-5 * np.abs(flat(a)).max()
    assert a.epoch == pytest.approx(b.epoch)


@pytest.mark.parametrize("algorithm", ["sync", "sprint"])
def test_fewer_samples_than_workers(capsys, tmp_path, algorithm):
    code, _, err = train(capsys, tmp_path / "r", "--limit", 3, "--algorithm", algorithm, "--devices", 5, "--subbatch",
                         2, "--epochs", 3)
    assert (code, err) == (0, "")
    assert summary(tmp_path / "r")["test_images"] == 3 and summary(tmp_path / "r")["samples"] >= 9
    if algorithm == "sync":
        assert summary(tmp_path / "r")["samples"] == 9 and summary(tmp_path / "r")["steps"] == 3


def test_the_bound_on_the_staleness_holds(capsys, tmp_path):
    code, out, _ = train(capsys, tmp_path / "r", "--algorithm", "sprint", "--devices", 3, "--subbatch", 4, "--steps",
                         40, "--max-staleness", 1, "--staleness-lr", "--warmup-sync", 5)
    assert code == 0 and "staleness at most 1, rate divided by the staleness, 5 synchronous updates first" in out
    assert summary(tmp_path / "r")["staleness_largest"] <= 1 and summary(tmp_path / "r")["steps"] == 40
    records = RunFolder(tmp_path / "r").metrics()
    assert all(r["staleness"] == 0 and r["minibatch"] == 12 for r in records if r["step"] <= 5)
    assert records[-1]["minibatch_histogram"]["counts"][12] >= 5


# ---- going on ---------------------------------------------------------------------------------------------------


def test_ten_updates_are_five_and_five_more_byte_for_byte(capsys, tmp_path):
    """The fifth ends with the odd image of the epoch; weights, momentum and places must all be there."""
    options = ["--algorithm", "sync", "--devices", 2, "--subbatch", 10, "--augment", "--schedule", "constant"]
    assert train(capsys, tmp_path / "ten", *options, "--steps", 11)[0] == 0
    assert train(capsys, tmp_path / "five", *options, "--steps", 6)[0] == 0
    code, out, err = train(capsys, tmp_path / "five", "--resume", tmp_path / "five", "--steps", 11)
    assert (code, err) == (0, "") and "step 6, epoch 1.21" in out and "--steps was 6, is now 11" in out
    a, b = last(tmp_path / "ten"), last(tmp_path / "five")
    assert flat(a).tobytes() == flat(b).tobytes() and a.step == b.step == 11 and a.epoch == b.epoch
    assert a.optimizer["momentum"].tobytes() == b.optimizer["momentum"].tobytes()
    steps = [r["step"] for r in RunFolder(tmp_path / "five").metrics()]
    assert steps == sorted(set(steps)) and steps[-1] == 11 and {5, 6, 10} <= set(steps)


def test_an_asynchronous_run_goes_on_with_other_workers_from_the_samples_used(capsys, tmp_path):
    options = ["--algorithm", "sprint", "--subbatch", 8, "--schedule", "constant"]
    assert train(capsys, tmp_path / "r", *options, "--devices", 3, "--steps", 9)[0] == 0
    before = last(tmp_path / "r")
    states = json.loads((tmp_path / "r" / "checkpoints" / "step-000000009.rank0.json").read_text())
    assert states["samples"] == before.worker["progress"]["samples"] and len(states["workers"]) == 3
    for devices, steps in ((3, 14), (2, 20)):
        again = ["--resume", tmp_path / "r", "--devices", devices, "--steps", steps]
        code, out, err = train(capsys, tmp_path / "r", *again)
        assert (code, err) == (0, "") and f"1 rank with {devices} workers" in out
        after = last(tmp_path / "r")
        assert after.step == steps and after.worker["progress"]["samples"] > before.worker["progress"]["samples"]
        assert np.abs(after.optimizer["momentum"]).max() > 0
        before = after


def test_a_finished_run_is_only_scored_again(capsys, tmp_path):
    path, options = tmp_path / "r", ["--algorithm", "sprint", "--devices", 2, "--subbatch", 8]
    assert train(capsys, path, *options, "--steps", 6)[0] == 0
    kept = {name: (path / name).read_bytes() for name in ("metrics.jsonl", "summary.json", "trace.json")}
    code, out, _ = train(capsys, path, "--resume", path)
    assert code == 0 and "resume   nothing left to do: step 6 of 6; a larger --steps goes on\n" in out
    assert {name: (path / name).read_bytes() for name in kept} == kept
    assert "nothing left" not in train(capsys, path, "--resume", path, "--steps", 7)[1]


def test_another_algorithm_cannot_go_on(capsys, tmp_path):
    assert train(capsys, tmp_path / "r", "--algorithm", "sync", "--steps", 1)[0] == 0
    code, _, err = train(capsys, tmp_path / "r", "--resume", tmp_path / "r", "--algorithm", "sprint")
    assert code == 2 and err.startswith("sprint: resume: expected --algorithm sync as in ") and err.count("\n") == 1


def test_a_state_of_a_share_that_is_no_more_is_left_alone():
    session = open_session(TrainConfig("mlp", data="synthetic", classes=7, limit=20, width=0.01, device="host",
                                       device_threads=1))
    third, half = (open_worker(session, "sprint", lambda *_: (0, 0), 0, shares, 11) for shares in (3, 2))
    place = half.state()
    assert (place["epoch"], place["position"], place["size"]) == (0, 5, 2)
    resume_worker(half, third.state())
    assert half.state() == place
    resume_worker(half, {**place, "epoch": 4, "step": 9})
    assert half.state() == {**place, "epoch": 4, "step": 9}


# ---- replay -----------------------------------------------------------------------------------------------------


def test_a_replay_has_equal_bytes_and_finds_a_change_of_one_bit(capsys, tmp_path):
    path = tmp_path / "r"
    code, *_ = train(capsys, path, "--algorithm", "sprint", "--devices", 3, "--subbatch", 4, "--epochs", 2, "--augment",
                     "--deterministic", "--save-every", 7, "--check-every", 3)
    assert code == 0
    assert run(["replay", str(path)]) == 0
    out = capsys.readouterr().out
    steps = summary(path)["steps"]
    assert f"updates 1 to {steps}, ranks 1, workers 3, on host:0" in out
    assert f"version {steps}: equal bit for bit" in out
    saved = last(path)
    saved.weights["conv1.w"].view(np.uint32)[0, 0, 0, 0] ^= 1
    checkpoint.save(checkpoint.find(path), saved)
    assert run(["replay", str(path)]) == 1
    out, err = capsys.readouterr()
    assert f"version {steps}: 1 of " in out and "weights differ, by " in out and err.count("\n") == 1


def test_a_resumed_run_is_replayed_from_where_it_went_on(capsys, tmp_path):
    options = ["--algorithm", "sprint", "--devices", 2, "--subbatch", 4, "--deterministic"]
    assert train(capsys, tmp_path / "r", *options, "--steps", 6)[0] == 0
    assert train(capsys, tmp_path / "r", "--resume", tmp_path / "r", "--steps", 12)[0] == 0
    assert run(["replay", str(tmp_path / "r")]) == 0
    assert "updates 7 to 12" in capsys.readouterr().out


def test_a_run_without_a_record_cannot_be_replayed(capsys, tmp_path):
    assert train(capsys, tmp_path / "r", "--algorithm", "sync", "--steps", 1)[0] == 0
    assert run(["replay", str(tmp_path / "r")]) == run(["replay", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "expected a run with --deterministic" in err and f"expected a run folder, got {tmp_path}" in err


# ---- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options, words", [
    (["--device", "host:1"], "device: expected auto, host or cuda with --algorithm sprint"),
    (["--inject", "drop-rank=0@update=3"], "inject: expected KIND=RANK@update=U"),
    (["--inject", "nan-grad=1@update=3"], "inject: expected a rank from 0 to 0, got 1"),
    (["--subbatch", "3000000"], "--subbatch "),
])
def test_a_mistake_is_one_line_and_leaves_nothing(capsys, tmp_path, options, words):
    code, out, err = train(capsys, tmp_path / "r", "--algorithm", "sprint", *options)
    assert (code, out) == (2, "") and err.startswith("sprint: ") and err.count("\n") == 1 and words in err
    assert not (tmp_path / "r").exists()


def test_workers_that_do_not_fit_together_are_refused(capsys, tmp_path, monkeypatch):
    """One worker's plan of 0.9 MB fits, that of three and the buffers between them do not."""
    from sprint.kernels.device import Memory

    monkeypatch.setattr("sprint.kernels.host.host_memory", lambda: Memory(2_000_000, 8_000_000))
    code, _, err = train(capsys, tmp_path / "r", "--algorithm", "sprint", "--devices", 3, "--subbatch", 8)
    assert code == 2 and "of this host, got" in err and "for 1 ranks with 3 workers each" in err
    assert train(capsys, tmp_path / "r", "--steps", 1, "--subbatch", 8)[0] == 0


def test_a_worker_that_raises_leaves_a_checkpoint(capsys, tmp_path):
    code, _, err = train(capsys, tmp_path / "r", "--algorithm", "sprint", "--devices", 2, "--inject",
                         "raise-worker=0@update=6,worker=1", "--subbatch", 4)
    assert code == 1 and re.fullmatch(r"sprint: injected: worker 1 raises at update ([6-9]|\d\d)\n", err)
    assert last(tmp_path / "r").step >= 5


def test_a_divergence_is_told_with_the_measured_staleness(capsys, tmp_path):
    code, _, err = train(capsys, tmp_path / "r", "--algorithm", "sprint", "--devices", 2, "--inject",
                         "nan-grad=0@update=12", "--subbatch", 4)
    assert code == 1 and err.count("\n") == 1 and "diverged: the weights would not be finite" in err
    assert "staleness" in err and "--max-staleness" in err and "on rank 0" in err
    saved = last(tmp_path / "r")
    assert saved.step >= 11 and np.isfinite(flat(saved)).all()


# ---- parts ------------------------------------------------------------------------------------------------------


def test_the_rate_depends_on_the_samples_or_where_updates_end_the_run_on_them():
    """An epoch of 97 images in mini-batches of 24 has 5 steps, the last one of one image."""
    config = TrainConfig("cnn-a", algorithm="sync", lr=0.5, epochs=3, schedule="warmup:7+step:0.1@2")
    rate, plain = rules(config, 24, 97).rate, schedule.parse(config.schedule)
    counted = rules(replace(config, steps=15), 24, 97).rate
    for step, samples in enumerate([0, 24, 48, 72, 96, 97, 121, 145, 169, 193, 194]):
        expected = pytest.approx(0.5 * plain(step, samples / 97, 3))
        assert rate(samples, 1000) == expected == counted(1000, step), step
    assert rules(replace(config, optimizer="sgd"), 24, 97).momentum == 0
    assert [next_goal(samples, 97) for samples in (0, 96, 97, 300)] == [97, 97, 194, 388]


def test_layouts():
    layout = Layout({0: 2, 3: 1}, {0: 5, 3: 7})
    assert layout.minibatch == 17 and layout.batches([3]) == [7] and layout.batches([0, 3]) == [5, 5, 7]
    assert [layout.part(share, [0, 3]) for share in range(3)] == [(0, 17), (5, 17), (10, 17)]
    assert layout.part(0, [3]) == (0, 7) and layout.first_share(3) == 2
    assert layout.living([[0, 3], [3]], 1) == [3] and layout.living([[0, 3], [0]], 3) == [0, 3]
    assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


class Beside(Single):
    """This process as rank 1 of two hosts; `masks` are the cores of all ranks."""

    def __init__(self, hosts, masks):
        super().__init__()
        self.rank, self.size, self.hosts, self.local_rank, self.local_size = 1, len(hosts), hosts, 1, 2
        self._rows = [[float(sum(1 << core % 32 for core in mask if core // 32 == word)) for word in range(32)]
                      for mask in masks]

    def gather_all(self, values):
        assert values == self._rows[self.rank]
        return np.array(self._rows)


@pytest.mark.parametrize("masks, cores", [
    (([0, 1], [0, 1], [0, 1]), 1.0), (([0], [1], [1]), 1.0), (([0, 1, 40], [1, 40, 1023], [1]), 2.0)])
def test_cores_are_divided_by_the_ranks_of_the_same_host_that_may_use_them(monkeypatch, masks, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(masks[1]))
    assert own_cores(Beside(["a", "a", "b"], masks)) == cores


def test_places(monkeypatch):
    comm = Beside(["a", "a"], ([0], [0]))
    config = TrainConfig("cnn-a", algorithm="sprint", devices=2, device="host")
    assert place(comm, config, 5.0).names == ["host:0", "host:1"] and place(comm, config, 5.0).threads == 2
    assert place(comm, config, 0.5).threads == 1 and place(comm, replace(config, device_threads=3), 0.5).threads == 3
    assert place(comm, replace(config, device="cuda"), 5.0).names == ["cuda:2", "cuda:3"]
    with pytest.raises(UsageError, match="got cuda:0"):
        place(comm, replace(config, device="cuda:0"), 5.0)


def test_bins_of_a_picture_keep_all_counts():
    histogram = Histogram(64)
    for value in [5, 5, 6, 700, 701, 3000]:
        histogram.add(value)
    places, width, counts = bars(histogram)
    assert counts.sum() == 6 and abs(places[0] - 5) < histogram.width and abs(places[-1] - 3000) < histogram.width
    assert width > 0.5 * histogram.width and min(np.diff(places)) > width
    assert bars(Histogram())[2].sum() == 0


def test_few_values_are_drawn_where_they_are_and_many_in_bins():
    histogram = Histogram()
    for value in [65, 95, 161, 161]:
        histogram.add(value)
    places, width, counts = bars(histogram)
    assert (places.tolist(), counts.tolist()) == ([65, 95, 161], [1, 1, 2]) and 2 < width < 3
    for value in range(100, 220):
        histogram.add(value)
    places, width, counts = bars(histogram)
    assert counts.sum() == 124 and len(counts) <= BARS and np.ptp(np.diff(places)) == 0
    assert counts[np.abs(places - 161).argmin()] == 4 + 2  # a bin of four values


# ---- profile ----------------------------------------------------------------------------------------------------


def test_profile_sees_every_worker_and_both_loops(capsys, monkeypatch, tmp_path):
    ceilings = Ceilings(20.0, "copy", 25.0, 60.0, 100.0, 1 << 25, 1)  # to measure them takes seconds
    monkeypatch.setattr("sprint.bench.observer._MEASURED", {("host", 1): ceilings})
    code, out, err = train(capsys, tmp_path / "r", "--algorithm", "sprint", "--devices", 2, "--subbatch", 8,
                           "--epochs", 2, "--profile", 2)
    assert (code, err) == (0, "")
    folder = tmp_path / "r" / "profile"
    for t in (0, 1):
        assert f"profile  rank 0 worker {t}: parts:" in out
        made = json.loads((folder / f"rank0-worker{t}" / "profile.json").read_text())
        seen = {row["layer"] for row in made["rows"]}
        assert {"images", "conv1", "loss"} <= {name.rstrip("0123456789") if name.startswith("loss") else name
                                               for name in seen}
        assert {p.name for p in (folder / f"rank0-worker{t}").iterdir()} == {
            "profile.json", "profile.csv", "profile.png", "profile.trace.json"}
    loops = json.loads((folder / "rank0-loops.json").read_text())["loops"]
    assert list(loops) == ["worker 0", "worker 1", "update thread"]
    assert tuple(loops["update thread"]["terms"]) == UPDATE_TERMS and tuple(loops["worker 1"]["terms"]) == WORKER_TERMS
    assert loops["worker 0"]["terms"]["compute_gradient"]["median"] > 0
    lines = (folder / "rank0-loops.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * len(WORKER_TERMS) + len(UPDATE_TERMS)
    assert (folder / "rank0-loops.png").read_bytes().startswith(b"\x89PNG")
