"""The host device: memory, threads and BLAS."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from sprint.kernels import blas, host
from sprint.kernels.device import elements, rows, tiles
from sprint.kernels.host import ALIGNMENT, HostDevice, aligned_empty, plan_ranges


@pytest.mark.parametrize("shape", [(), 7, (3, 0), (1, 2, 3), (5, 17)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64])
def test_arrays_begin_on_a_cache_line(fast, shape, dtype):
    for array in (aligned_empty(shape, dtype), fast.empty(shape, dtype), fast.zeros(shape, dtype)):
        assert array.shape == np.empty(shape).shape and array.dtype == dtype
        assert host.address(array) % ALIGNMENT == 0 or not array.size
        assert array.flags.c_contiguous and array.flags.writeable
    assert not fast.zeros(shape, dtype).any()


def test_upload_and_download_copy(fast, rng):
    values = rng.normal(size=(3, 8)).astype(np.float32)
    array = fast.upload(values[:, ::2])
    back = fast.download(array)
    values[:], array[0] = 0, np.nan
    assert array.flags.c_contiguous and not np.isnan(back).any() and back.all()


def test_copy_checks_shape_dtype_and_layout(fast):
    dst = fast.zeros((2, 3))
    fast.copy(dst, np.ones((2, 3), np.float32))
    assert (dst == 1).all()
    for src, message in ((np.ones((3, 2), np.float32), "copy: expected .2, 3. float32, got .3, 2. float32"),
                         (np.ones((2, 3)), "copy: expected .2, 3. float32, got .2, 3. float64"),
                         (np.ones((2, 6), np.float32)[:, ::2], "copy: expected src C-contiguous")):
        with pytest.raises(ValueError, match=message):
            fast.copy(dst, src)


@pytest.mark.parametrize("work, threads, ranges", [
    (elements(1), 4, 1), (elements(8191), 4, 1), (elements(3 * 8192), 4, 3), (elements(10**9), 4, 16),
    (elements(10**9), 1, 1), (rows(3), 4, 3), (rows(100), 2, 8),
])
def test_ranges_follow_work_and_threads(work, threads, ranges):
    assert plan_ranges(work, threads) == ranges


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 8191, 50_001])
def test_any_number_of_threads_does_all_the_work_once(threads, size):
    x = np.ones(size, np.float32)
    HostDevice(threads=threads).launch("update", "scale", elements(size), x, 3.0, size)
    assert (x == 3).all()


def test_two_devices_in_two_threads(rng):
    """host:0 and host:1, one core each, give what one device gives."""
    values = rng.normal(size=(2, 40_000)).astype(np.float32)
    results = values.copy()

    def work(i):
        device = HostDevice(i, threads=1)
        for _ in range(50):
            device.launch("update", "scale", elements(40_000), results[i], 1.01, 40_000)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = values.copy()
    for _ in range(50):
        expected *= np.float32(1.01)
    assert np.array_equal(results, expected)


def test_a_launch_lets_other_python_threads_run():
    """The GIL is free while a kernel runs: another thread wakes up in the middle of a launch."""
    x, device, wakes, stop = np.ones(40_000_000, np.float32), HostDevice(threads=1), [], threading.Event()

    def wake():
        while not stop.wait(0.0005):
            wakes.append(time.perf_counter())

    def launch():
        begin = time.perf_counter()
        device.launch("update", "scale", elements(x.size), x, 1.0, x.size)
        return begin, time.perf_counter()

    alone = min(end - begin for begin, end in (launch() for _ in range(3)))
    thread = threading.Thread(target=wake)
    thread.start()
    try:
        for _ in range(50):
            begin, _ = launch()
            if any(begin + 0.2 * alone < moment < begin + 0.8 * alone for moment in wakes):
                return
    finally:
        stop.set()
        thread.join()
    pytest.fail(f"no wake-up in the middle of 50 launches of {1e3 * alone:.1f} ms")


def test_explicit_tiles_need_barriers(fast):
    with pytest.raises(RuntimeError, match=r"scale: expected a device with barriers, got host:0"):
        fast.launch("update", "scale", tiles((1, 1, 1), (32, 1, 1)), np.ones(3, np.float32), 1.0, 3)


@pytest.mark.parametrize("threads", [0, -2, 1025, 100_000, 2**31])
def test_a_number_of_threads_that_a_process_can_have(threads):
    with pytest.raises(ValueError, match=f"host device: expected 1 to 1024 threads, got {threads}"):
        HostDevice(threads=threads)


def test_description():
    device = HostDevice(2, threads=1)
    assert device.describe() == f"host:2 ({host.processor_name()}, 1 thread, fast)"
    assert HostDevice().threads == host.usable_cores()


def test_cores_are_those_of_this_process():
    code = "import os; os.sched_setaffinity(0, {next(iter(os.sched_getaffinity(0)))})\n" \
           "from sprint.kernels import host; print(host.HostDevice().threads)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1\n"


def test_memory_is_within_the_machine(fast):
    memory = fast.memory()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory.available < memory.total <= pages


@pytest.mark.parametrize("limit, expected", [("max", []), ("1000", [(1000, 500)])])
def test_memory_of_a_control_group(tmp_path, limit, expected):
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\nfile 400\ninactive_file 300\nactive_file 100\n")
    assert host._cgroup_memory(tmp_path) == expected
    assert host._cgroup_memory(tmp_path / "none") == []


def test_a_control_group_lowers_both_figures(monkeypatch):
    monkeypatch.setattr(host, "_cgroup_memory", lambda: [(1 << 20, 1 << 19)])
    assert host.host_memory() == host.Memory(1 << 19, 1 << 20)


@pytest.mark.parametrize("trans_a, trans_b", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("alpha, beta", [(1.0, 0.0), (-0.5, 1.0), (2.0, 0.25)])
@pytest.mark.parametrize("m, n, k", [(5, 7, 3), (1, 33, 130), (64, 1, 9)])
def test_sgemm_with_strided_rows(fast, rng, trans_a, trans_b, alpha, beta, m, n, k):
    a = rng.normal(size=(k, m) if trans_a else (m, k)).astype(np.float32)
    b = rng.normal(size=(n, k) if trans_b else (k, n)).astype(np.float32)
    c = rng.normal(size=(m, n)).astype(np.float32)
    wide = [np.pad(array, ((0, 0), (2, 3))) for array in (a, b, c)]
    if not beta:
        wide[2][:, 2:-3] = np.nan  # beta 0 overwrites whatever c holds
    inner = [array[:, 2:-3] for array in wide]
    fast.sgemm(*inner, trans_a=trans_a, trans_b=trans_b, alpha=alpha, beta=beta)
    a64, b64 = (a.T if trans_a else a).astype(np.float64), (b.T if trans_b else b).astype(np.float64)
    expected = alpha * a64 @ b64 + (beta * c if beta else 0)
    bound = k * np.finfo(np.float32).eps * (abs(alpha) * abs(a64) @ abs(b64) + abs(beta * c)) + 1e-7
    assert (abs(inner[2] - expected) <= bound).all()
    assert not wide[2][:, :2].any() and not wide[2][:, -3:].any()


@pytest.mark.parametrize("beta, expected", [(0.0, 0.0), (0.5, 2.0)])
def test_sgemm_over_no_depth_still_writes_c(fast, beta, expected):
    c = np.full((2, 3), 4 if beta else np.nan, np.float32)
    fast.sgemm(np.empty((2, 0), np.float32), np.empty((0, 3), np.float32), c, beta=beta)
    assert (c == expected).all()
    fast.sgemm(np.empty((0, 2), np.float32), np.empty((2, 3), np.float32), np.empty((0, 3), np.float32))


@pytest.mark.parametrize("change, error, message", [
    ({"a": np.zeros((2, 3))}, TypeError, "expected a as float32, got float64"),
    ({"b": np.zeros((4, 3), np.float32).T}, ValueError, "expected b row-major, got shape"),
    ({"c": np.zeros((2, 8), np.float32)[:, ::2]}, ValueError, "expected c row-major"),
    ({"c": np.broadcast_to(np.zeros(4, np.float32), (2, 4))}, ValueError, "expected c row-major"),
    ({"a": np.zeros((2, 3, 1), np.float32)}, ValueError, "expected a with 2 dimensions"),
    ({"b": np.zeros((5, 4), np.float32)}, ValueError, "got k=3 and 5"),
    ({"c": np.zeros((4, 2), np.float32)}, ValueError, r"c\(4, 2\)"),
])
def test_sgemm_refuses(fast, change, error, message):
    arrays = {name: np.zeros(shape, np.float32) for name, shape in (("a", (2, 3)), ("b", (3, 4)), ("c", (2, 4)))}
    with pytest.raises(error, match=f"sgemm: .*{message}"):
        fast.sgemm(**{**arrays, **change})


def test_sgemm_refuses_a_result_over_an_operand(fast, rng):
    store = rng.standard_normal((6, 10)).astype(np.float32)
    whole = store[:, :6]
    for a, b, c in ((whole, store[:, 4:10], whole), (store[:, 4:10], whole, whole), (whole, whole, store[:, 4:10]),
                    (whole, whole, store.reshape(-1)[7:43].reshape(6, 6)),
                    (store[:3, :3], store[3:, :3], store[2:5, 2:5])):
        before = store.copy()
        with pytest.raises(ValueError, match=r"sgemm: expected c apart from [ab], got c\("):
            fast.sgemm(a, b, c)
        assert (store == before).all()


def test_sgemm_takes_operands_beside_the_result(fast, rng):
    """Columns of one matrix, and its rows, have nothing in common; a and b may be the same."""
    store = rng.standard_normal((6, 9)).astype(np.float32)
    for a, b, c in ((store[:3, :3], store[3:, :3], store[:3, 3:6]), (store[:3, 6:], store[:3, 6:], store[:3, 3:6]),
                    (store[:3, 6:], store[:3, :3], store[3:, 6:])):
        expected = a.astype(np.float64) @ b
        fast.sgemm(a, b, c)
        np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-6)


def test_blas_is_named_with_its_threads():
    blas.set_threads(1)
    assert "(1 threads)" in blas.describe()
    blas.set_threads(2)
    assert "(2 threads)" in blas.describe()
