"""The measured choice of a convolution algorithm: measured once, remembered, never in the way."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from sprint.kernels import conv_choice, host, source
from sprint.kernels.conv import DIRECTIONS, Conv
from sprint.kernels.conv_choice import Choices, device_tag, fastest
from sprint.kernels.conv_shape import ConvShape
from sprint.kernels.host import HostDevice, processor_name

SHAPE = ConvShape(2, 2, 6, 7, 3, 3, 3)


def train(conv, rng, poison):
    """One step of a layer on random arrays: y, dx, dw, db."""
    s = conv.shape
    x, w, b, dy = (rng.standard_normal(size).astype(np.float32) for size in (s.x, s.w, (s.K,), s.y))
    y, dx, dw, db = poison(s.y), poison(s.x), poison(s.w), poison((s.K,))
    workspace = poison(-(-conv.workspace_bytes() // 4))
    conv.forward(x, w, b, y, False, workspace)
    conv.backward(x, w, y, dy, dw, db, dx, False, workspace)
    return y, dx, dw, db


class Counted:
    """Stands for conv_choice.fastest: counts, and always takes the last candidate."""

    def __init__(self, monkeypatch):
        self.calls = 0
        monkeypatch.setattr("sprint.kernels.conv.fastest", self)

    def __call__(self, device, candidates, call):
        self.calls += 1
        return candidates[-1]


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch)


def test_measured_once_for_shape_direction_and_threads(counted, tmp_path, rng, poison):
    choices = Choices(tmp_path)
    for _ in range(2):
        train(Conv(HostDevice(threads=2), SHAPE, "auto", choices=choices), rng, poison)
    assert counted.calls == len(DIRECTIONS)
    train(Conv(HostDevice(threads=1), SHAPE, "auto", choices=choices), rng, poison)
    assert counted.calls == 2 * len(DIRECTIONS)
    train(Conv(HostDevice(3, threads=1), SHAPE, "auto", choices=choices), rng, poison)  # host:3 is the same machine
    assert counted.calls == 2 * len(DIRECTIONS)
    other = ConvShape(2, 3, 6, 7, 3, 3, 3)
    train(Conv(HostDevice(threads=1), other, "auto", choices=choices), rng, poison)
    assert counted.calls == 3 * len(DIRECTIONS)


def test_another_process_finds_it_in_the_cache(counted, tmp_path, rng, poison):
    train(Conv(HostDevice(threads=2), SHAPE, "auto", choices=Choices(tmp_path)), rng, poison)
    train(Conv(HostDevice(threads=2), SHAPE, "auto", choices=Choices(tmp_path)), rng, poison)
    assert counted.calls == len(DIRECTIONS)
    (file,) = tmp_path.iterdir()
    table = json.loads(file.read_text())
    assert len(table) == len(DIRECTIONS) and set(table.values()) == {"winograd"}
    assert all(device_tag(HostDevice(threads=2)) in key for key in table)


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b'{"a": 1}', b"\xff\xfe"])
def test_corrupt_cache_costs_a_measurement(counted, tmp_path, rng, poison, content):
    train(Conv(HostDevice(threads=2), SHAPE, "auto", choices=Choices(tmp_path)), rng, poison)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    train(Conv(HostDevice(threads=2), SHAPE, "auto", choices=Choices(tmp_path)), rng, poison)
    assert counted.calls == 2 * len(DIRECTIONS)
    assert len(json.loads(file.read_text())) >= len(DIRECTIONS)


def test_unusable_cache_folder_is_no_error(counted, tmp_path, rng, poison):
    (tmp_path / "file").write_text("in the way")
    choices = Choices(tmp_path / "file" / "folder")
    for _ in range(2):
        train(Conv(HostDevice(threads=2), SHAPE, "auto", choices=choices), rng, poison)
    assert counted.calls == len(DIRECTIONS)


def test_pinned_choices_win_over_the_cache(counted, tmp_path, rng, poison):
    """A resumed run pins what it used before, so that the algorithms and the bytes are the same."""
    first = Choices(tmp_path)
    train(Conv(HostDevice(threads=2), SHAPE, "auto", choices=first), rng, poison)
    pinned = dict.fromkeys(first.table(), "implicit")
    resumed = Choices(tmp_path)
    resumed.pin(pinned)
    conv = Conv(HostDevice(threads=2), SHAPE, "auto", choices=resumed)
    train(conv, rng, poison)
    assert counted.calls == len(DIRECTIONS) and resumed.table() == pinned
    assert [a.name for d in DIRECTIONS for a in conv._possible(d)] == ["implicit"] * 3


def test_two_workers_measure_one_shape_once(counted, tmp_path, poison):
    choices, failures = Choices(tmp_path), []

    def work(number):
        try:
            rng = np.random.default_rng(number)
            train(Conv(HostDevice(number, threads=1), SHAPE, "auto", choices=choices), rng, poison)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not failures and counted.calls == len(DIRECTIONS)


def test_every_choice_gives_the_same_results(tmp_path, poison):
    results = {}
    for algo in ("explicit", "implicit", "winograd", "auto"):
        conv = Conv(HostDevice(threads=2), SHAPE, algo, choices=Choices(tmp_path))
        results[algo] = train(conv, np.random.default_rng(8), poison)
    for algo in ("implicit", "winograd", "auto"):
        for one, two in zip(results["explicit"], results[algo], strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=2e-5)


def test_workspace_shrinks_to_the_chosen(counted, tmp_path, rng, poison):
    conv = Conv(HostDevice(threads=2), SHAPE, "auto", choices=Choices(tmp_path))
    most = conv.workspace_bytes()
    train(conv, rng, poison)
    assert conv.workspace_bytes() == Conv(HostDevice(threads=2), SHAPE, "winograd").workspace_bytes() <= most


def test_the_quicker_one_is_taken(fast, monkeypatch):
    times, now = {"slow": 3.0, "quick": 1.0}, [0.0]
    monkeypatch.setattr(conv_choice.time, "perf_counter", lambda: now[0])

    def call(name):
        now[0] += times[name]

    assert fastest(fast, ["slow", "quick"], call) == "quick"
    assert fastest(fast, ["quick", "slow"], call) == "quick"


@pytest.mark.parametrize(("a_ms", "b_ms", "winner", "calls"), [
    ([10], [11], "a", 3),  # clear at once
    ([30, 30, 10, 10, 10], [20], "a", 5),  # disturbed at first
    ([30, 10] * 6, [20], "a", 12),  # always in doubt, and there is an end
    ([300], [200], "b", 2),  # slow: half a second is enough
])
def test_calls_are_timed_until_the_quicker_one_is_clear(a_ms, b_ms, winner, calls, fast, monkeypatch):
    now, made = [0.0], {"a": [], "b": []}
    monkeypatch.setattr(conv_choice.time, "perf_counter", lambda: now[0])

    def call(name):
        ms = {"a": a_ms, "b": b_ms}[name]
        now[0] += ms[min(max(len(made[name]) - 1, 0), len(ms) - 1)] / 1e3  # the first call of each is not timed
        made[name].append(now[0])

    assert fastest(fast, ["b", "a"], call) == winner
    assert len(made["a"]) == len(made["b"]) == 1 + calls


@pytest.mark.parametrize("threads", [1, 2])
def test_real_times_choose_for_each_thread_count(threads, tmp_path, poison):
    """Nothing is stood in for: three choices are kept, under this processor and thread count, and results are right."""
    device, choices = HostDevice(threads=threads), Choices(tmp_path)
    chosen = train(Conv(device, SHAPE, "auto", choices=choices), np.random.default_rng(4), poison)
    plain = train(Conv(device, SHAPE, "explicit"), np.random.default_rng(4), poison)
    for one, two in zip(plain, chosen, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=2e-5)
    (file,) = tmp_path.iterdir()
    table = json.loads(file.read_text())
    assert table == choices.table() and set(table.values()) <= {"implicit", "winograd"}
    assert len(table) == 3 and all(f"{threads} thread" in key and processor_name() in key for key in table)


def test_another_processor_with_the_same_home_measures_for_itself(counted, tmp_path, rng, poison, monkeypatch):
    train(Conv(HostDevice(threads=1), SHAPE, "auto", choices=Choices(tmp_path)), rng, poison)
    monkeypatch.setattr(host, "processor_name", lambda: "another")
    train(Conv(HostDevice(threads=1), SHAPE, "auto", choices=Choices(tmp_path)), rng, poison)
    assert counted.calls == 2 * len(DIRECTIONS)
    (file,) = tmp_path.iterdir()
    assert len(json.loads(file.read_text())) == 2 * len(DIRECTIONS)  # and neither forgets the other's


def test_changed_texts_are_measured_afresh(counted, tmp_path, rng, poison, monkeypatch):
    train(Conv(HostDevice(threads=1), SHAPE, "auto", choices=Choices(tmp_path)), rng, poison)
    monkeypatch.setattr(conv_choice, "_texts_digest", lambda: "0123")
    train(Conv(HostDevice(threads=1), SHAPE, "auto", choices=Choices(tmp_path)), rng, poison)
    assert counted.calls == 2 * len(DIRECTIONS) and len(list(tmp_path.iterdir())) == 2


def test_readers_never_see_a_part_of_the_file(tmp_path):
    """Three writers without a common lock, as three processes are: the file is whole at any moment."""
    first = Choices(tmp_path)
    first.put("start", "explicit")
    (file,) = tmp_path.iterdir()
    writers = [threading.Thread(target=_put_many, args=(Choices(tmp_path), name)) for name in "abc"]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        table = json.loads(file.read_text())
        reads += set(table.values()) == {"explicit"}
    for writer in writers:
        writer.join(timeout=60)
    assert reads > 0 and [path.name for path in tmp_path.iterdir()] == [file.name]
    assert Choices(tmp_path).get("start") == "explicit"


def _put_many(choices, name):
    for number in range(60):
        choices.put(f"{name}{number}", "explicit")


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    Choices(tmp_path).put("a", "implicit")

    def refused(old, new):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(source.os, "replace", refused)
    choices = Choices(tmp_path)
    choices.put("b", "winograd")
    monkeypatch.undo()
    assert choices.get("b") == "winograd" and Choices(tmp_path).get("b") is None
    assert Choices(tmp_path).get("a") == "implicit" and len(list(tmp_path.iterdir())) == 1
