"""The plan: what predict says of each configuration, the limits kept, the front right, fast enough, drawn."""

from __future__ import annotations

import time

import numpy as np
import pytest
from PIL import Image
from sprint.bench.machine_file import load_machine
from sprint.bench.model import predict
from sprint.bench.model_plots import plot_plan
from sprint.bench.outcome import Config
from sprint.bench.plan import ADMISSIBLE, GIB, LARGE, MEMORY, SMALL, STALE, Limits, make_plan
from sprint.engine.errors import UsageError
from sprint.engine.nets import build


@pytest.fixture(scope="module")
def tsubame():
    """The paper's use case: CNN-A on TSUBAME2.5, 138 +- 25%, three GPUs a node."""
    return make_plan(build("cnn-a"), load_machine("tsubame2.5"), range(1, 65), 3, range(1, 12), Limits(6e9, 138, 0.25))


def test_the_papers_choice_is_admissible(tsubame):
    assert tsubame.verdict[15, 4] == ADMISSIBLE
    assert (15, 4) in tsubame.ranked()


@pytest.mark.parametrize(("row", "column"), [(0, 0), (15, 4), (40, 10), (63, 0)])
def test_every_cell_is_what_predict_says(tsubame, row, column):
    alone = predict(build("cnn-a"), load_machine("tsubame2.5"), Config(row + 1, 3, column + 1))
    assert tsubame.t_gpu[row, column] == pytest.approx(alone.t_gpu, rel=1e-3)
    assert tsubame.t_update[row, column] == pytest.approx(alone.t_update, rel=1e-3)
    assert tsubame.t_epoch[row, column] == pytest.approx(alone.t_epoch, rel=1e-3)
    assert tsubame.minibatch[row, column] == pytest.approx(alone.minibatch.mean, rel=1e-3)
    assert tsubame.staleness[row, column] == pytest.approx(alone.staleness.mean, rel=1e-3)
    assert tsubame.memory[row, column] == alone.memory_bytes


def test_ranked_is_by_epoch_and_within_the_limits(tsubame):
    epochs = [tsubame.t_epoch[cell] for cell in tsubame.ranked()]
    assert epochs == sorted(epochs)
    assert all(103.5 <= tsubame.minibatch[cell] <= 172.5 for cell in tsubame.ranked())
    assert tsubame.reason(*tsubame.ranked()[0]) == ""
    assert tsubame.reason(*tsubame.ranked()[1]) == f"epoch {epochs[1] / epochs[0] - 1:.1%} longer"


def test_each_limit_gives_its_reason():
    spec, machine = build("cnn-a"), load_machine("tsubame2.5")
    plan = make_plan(spec, machine, range(1, 40), 3, range(1, 12), Limits(2 * GIB, 138, 0.25, staleness=3.0))
    checks = {MEMORY: ("memory", plan.memory > 2 * GIB), SMALL: ("mini-batch", plan.minibatch < 103.5),
              LARGE: ("mini-batch", plan.minibatch > 172.5), STALE: ("staleness", plan.staleness > 3.0)}
    for verdict, (word, broken) in checks.items():
        cells = np.argwhere(plan.verdict == verdict)
        assert len(cells)
        for row, column in cells[::7]:
            assert broken[row, column]
            assert plan.reason(row, column).startswith(word)
    kept = plan.verdict == ADMISSIBLE
    assert kept.any()
    assert not any((broken & kept).any() for _, broken in checks.values())


def test_the_front_is_what_comparing_all_pairs_gives(tsubame):
    cells = tsubame.ranked()
    for cell in cells:
        beaten = any(tsubame.t_epoch[other] <= tsubame.t_epoch[cell] and other[0] <= cell[0]
                     for other in cells if other != cell)
        assert tsubame.front[cell] == (not beaten)
    assert not tsubame.front[tsubame.verdict != ADMISSIBLE].any()


def test_without_a_wanted_batch_only_memory_counts():
    plan = make_plan(build("lenet"), load_machine("tsubame2.5"), [1, 2], 1, [1, 4096], Limits(10**8))
    assert plan.verdict.tolist() == [[ADMISSIBLE, MEMORY]] * 2


def test_no_admissible_configuration_is_a_plan_all_the_same(tmp_path):
    plan = make_plan(build("lenet"), load_machine("tsubame2.5"), [1], 1, [1, 2], Limits(10**9, batch=10**6))
    assert plan.ranked() == []
    assert plan.plain()["ranked"] == []
    plot_plan(plan, tmp_path / "none.png")


def test_json_lists_every_configuration_with_its_reason(tsubame):
    plain = tsubame.plain()
    cells = plain["configurations"]
    assert {len(column) for column in cells.values()} == {64 * 11}
    best = plain["ranked"][0]
    assert (cells["nodes"][best], cells["subbatch"][best]) == (tsubame.ranked()[0][0] + 1, tsubame.ranked()[0][1] + 1)
    assert cells["reason"][best] == ""
    assert cells["t_epoch"][best] == tsubame.shortest


def test_a_thousand_nodes_and_a_hundred_sub_batches_take_under_two_seconds():
    spec, machine = build("cnn-a"), load_machine("tsubame-kfc")
    begin = time.process_time()
    plan = make_plan(spec, machine, range(1, 1001), 8, range(1, 101), Limits(12e9, 138, 0.25))
    assert time.process_time() - begin < 2.0
    assert plan.t_epoch.shape == (1000, 100)


@pytest.mark.parametrize(("limits", "message"), [
    ({"batch": 0}, r"plan: batch: expected a number > 0 and <= 1e\+24, got 0"),
    ({"staleness": -1}, r"plan: max-staleness: expected a number > 0 and <= 1e\+24, got -1"),
    ({"tolerance": -0.1}, r"plan: tolerance: expected a number >= 0 and <= 1e\+24, got -0\.1"),
])
def test_bad_limits_are_named(limits, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        Limits(**({"memory_bytes": 1e9} | limits))


@pytest.mark.parametrize(("nodes", "devices", "subbatches", "name"), [
    ([0, 1], 1, [1], "nodes"), ([1, 100_001], 1, [1], "nodes"), ([1], 1, [], "subbatch"), ([1], 0, [1], "devices"),
    (range(1, 2002), 1, range(1, 1001), "plan: nodes times subbatch")])
def test_bad_ranges_are_named(toy, nodes, devices, subbatches, name):
    with pytest.raises(UsageError, match=f"^{name}: expected a whole number from 1 to "):
        make_plan(build("lenet"), toy, nodes, devices, subbatches, Limits(1e9))


def test_the_heat_maps_are_drawn(tsubame, tmp_path):
    plot_plan(tsubame, tmp_path / "plan.png")
    picture = np.asarray(Image.open(tmp_path / "plan.png").convert("RGB")).reshape(-1, 3)
    assert len(np.unique(picture, axis=0)) > 200  # two colour maps
    assert (picture == (255, 0, 0)).all(axis=1).sum() > 50  # the star of the shortest epoch
