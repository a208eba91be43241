"""The measured choice of a convolution algorithm: measured once, remembered, never in the way."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from sprint.kernels import conv_choice
from sprint.kernels.conv import DIRECTIONS, Conv
from sprint.kernels.conv_choice import Choices, device_tag, fastest
from sprint.kernels.conv_shape import ConvShape
from sprint.kernels.host import HostDevice

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
