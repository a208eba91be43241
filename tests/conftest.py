"""Options and devices that tests share."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from sprint.kernels.host import HostDevice
from sprint.kernels.simt import ORDERS, SimtDevice

BLOCKS = (32, 128, 256)


def pytest_addoption(parser):
    parser.addoption("--sanitize", action="store_true",
                     help="build simt kernels with AddressSanitizer and UBSan (run under libasan: make sanitize)")


def pytest_collection_modifyitems(config, items):
    """Tests marked gpu run only where they are asked for: -m gpu."""
    if "gpu" not in (config.getoption("-m") or ""):
        skip = pytest.mark.skip(reason="needs a GPU: make test-gpu")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


def every_device():
    """(id, opener) of every way to run a kernel on this machine: fast, and simt by block size and thread order."""
    yield "fast", lambda sanitize: HostDevice(threads=2)
    for block in BLOCKS:
        for order in ORDERS:
            yield f"simt-{block}-{order}", lambda sanitize, b=block, o=order: SimtDevice(
                block=b, order=o, seed=b, sanitize=sanitize)


@pytest.fixture(params=[opener for _, opener in every_device()], ids=[name for name, _ in every_device()])
def device(request):
    """A kernel test that takes `device` runs in fast mode and in simt mode (3 block sizes x 3 thread orders)."""
    return request.param(request.config.getoption("--sanitize"))


@pytest.fixture
def forbid_launch(device, monkeypatch):
    """forbid_launch() makes every later launch of `device` fail the test."""
    def fail(*_):
        raise AssertionError("expected no launch")

    return lambda: monkeypatch.setattr(device, "_run", fail)


@pytest.fixture
def cupy(monkeypatch):
    """A stand-in for CuPy with two devices (fake_cupy.py): the CUDA device runs without a GPU. Gives its state."""
    spec = importlib.util.spec_from_file_location("fake_cupy", Path(__file__).parent / "fake_cupy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.install(monkeypatch)


@pytest.fixture
def fast():
    """Host device with two threads."""
    return HostDevice(threads=2)


@pytest.fixture
def rng():
    return np.random.default_rng(20160809)


@pytest.fixture
def poison():
    """poison(shape, dtype) makes an output array full of NaN (or of the greatest integer)."""
    return _poison


def _poison(shape, dtype=np.float32):
    """An output that shows every element that a kernel forgot to write: NaN, or the greatest integer."""
    value = np.nan if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max
    return np.full(shape, value, dtype)
