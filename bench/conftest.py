"""Options and the device of the benchmarks that run under pytest-benchmark: make bench."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sprint.bench.environment import machine
from sprint.kernels.device import Device, open_device


class Clock:
    """A timer that waits: every reading stands behind all work of the device."""

    device: Device | None = None

    def __call__(self) -> float:
        if self.device is not None:
            self.device.synchronize()
        return time.perf_counter()


CLOCK = Clock()


def pytest_addoption(parser: Any) -> None:
    """--device and --device-threads, as everywhere."""
    parser.addoption("--device", default="auto", help="auto, host, host:I, cuda, cuda:I")
    parser.addoption("--device-threads", type=int, default=None, help="of a host device (default: all cores)")


def pytest_configure(config: Any) -> None:
    """Open the device once, and let every benchmark be timed by a clock that waits for it."""
    CLOCK.device = open_device(config.getoption("--device"), threads=config.getoption("--device-threads"))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Give every benchmark the clock."""
    for item in items:
        item.add_marker(pytest.mark.benchmark(timer=CLOCK))


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    """Say on which device it was, so that `sprint bench compare` knows what to refuse."""
    assert CLOCK.device is not None
    machine_info["sprint"] = machine(CLOCK.device)


@pytest.fixture(scope="session")
def device() -> Device:
    """The device of all benchmarks."""
    assert CLOCK.device is not None
    return CLOCK.device
