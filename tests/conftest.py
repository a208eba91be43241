"""Options and devices that tests share."""

from __future__ import annotations

import functools
import importlib.util
import threading
from pathlib import Path

import numpy as np
import pytest
from sprint.kernels import cuda
from sprint.kernels.host import HostDevice
from sprint.kernels.simt import ORDERS, SimtDevice

BLOCKS = (32, 128, 256)
QUICK = ((32, "shuffle"), (256, "reverse"))  # ways of simt mode that `make check` takes
JOBS = {"mpirun", "job"}  # fixtures that start MPI jobs
ENDS_S = 3.0  # how long a thread may take to end after the test that started it


def pytest_addoption(parser):
    parser.addoption("--sanitize", action="store_true",
                     help="build simt kernels with AddressSanitizer and UBSan (run under libasan: make sanitize)")
    parser.addoption("--stand-in", action="store_true",
                     help="run tests marked gpu on a stand-in for CuPy (fake_cupy.py), slowly, without a GPU")


def pytest_configure(config):
    if config.getoption("--stand-in"):
        _load("fake_cupy").install(pytest.MonkeyPatch())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Tests marked gpu run only where they are asked for (-m gpu), and say why where there is no GPU.

    Those that start MPI jobs are slow, but for a few that are marked smoke.
    """
    for item in items:
        if JOBS & set(item.fixturenames) and not item.get_closest_marker("smoke"):
            item.add_marker("slow")
    of_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if "gpu" not in (config.getoption("-m") or ""):
        config.hook.pytest_deselected(items=of_gpu)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
    elif of_gpu and (reason := cuda.missing()):
        for item in of_gpu:
            item.add_marker(pytest.mark.skip(reason=reason))


def _load(name):
    """A module that lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def every_device():
    """Every way to run a kernel: fast, simt by block size and thread order, and with -m gpu on a GPU."""
    yield pytest.param(lambda sanitize: HostDevice(threads=2), id="fast")
    for block in BLOCKS:
        for order in ORDERS:
            options = {"block": block, "order": order, "seed": block}
            yield pytest.param(lambda sanitize, options=options: SimtDevice(**options, sanitize=sanitize),
                               id=f"simt-{block}-{order}", marks=[pytest.mark.slow] * ((block, order) not in QUICK))
    yield pytest.param(lambda sanitize: mirrored_cuda(), id="cuda", marks=pytest.mark.gpu)


@functools.cache
def mirrored_cuda():
    return _load("mirrored").MirroredCuda()


@pytest.fixture(autouse=True)
def no_thread_left():
    """A thread that outlives its test would slow all that follow it."""
    before = set(threading.enumerate())
    yield
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(ENDS_S)
    left = [thread.name for thread in started if thread.is_alive()]
    assert not left, f"expected no thread to outlive the test, got {left}"


@pytest.fixture(params=every_device())
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
    return _load("fake_cupy").install(monkeypatch)


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
