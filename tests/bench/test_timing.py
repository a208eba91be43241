"""Timing on a device with a clock of its own: what waits is seen, and who does not wait is caught."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from sprint.bench import ceilings, kernels, timing
from sprint.bench.ceilings import MARGIN, Ceilings, MeasuringError, cache_bytes, measure_ceilings
from sprint.bench.kernels import Bench, Settings, host_launch_ms
from sprint.bench.selection import cases_of
from sprint.bench.timing import Flush, Spread, measure, timed
from sprint.kernels import activation, update
from sprint.kernels.device import open_device
from sprint.kernels.host import HostDevice

BANDWIDTH, PEAK = 10e9, 100e9  # bytes and operations a second of the virtual device
LAUNCH_S, TICK_S = 20e-6, 1e-9
CEILINGS = Ceilings(10.0, "im2col copy", 12.0, 50.0, 100.0, 1 << 20, 1)


class QueueDevice(HostDevice):
    """A device that works through a queue while the host goes on, in virtual time (seconds)."""

    def __init__(self, marks_wait=True):
        super().__init__(threads=1)
        self.kind, self.now, self.free, self.marks_wait = "cuda", 0.0, 0.0, marks_wait

    def clock(self):
        self.now += TICK_S
        return self.now

    def queue(self, seconds):
        self.now += LAUNCH_S
        self.free = max(self.free, self.now) + seconds

    def _run(self, family, signature, work, values, block):
        super()._run(family, signature, work, values, block)
        in_place = 2 if signature.name == "scale" else 1  # read and written
        self.queue(in_place * sum(v.nbytes for v in values if isinstance(v, np.ndarray)) / BANDWIDTH)

    def copy(self, dst, src):
        super().copy(dst, src)
        self.queue((dst.nbytes + src.nbytes) / BANDWIDTH)

    def sgemm(self, a, b, c, **options):
        super().sgemm(a, b, c, **options)
        self.queue(2 * a.size * c.shape[1] / PEAK)

    def synchronize(self):
        self.now = max(self.now, self.free)

    def download(self, array):
        self.synchronize()
        return super().download(array)

    def mark(self):
        return max(self.free, self.now) if self.marks_wait else self.now

    def elapsed_ms(self, first, last):
        self.now = max(self.now, last)
        return 1e3 * (last - first)


@pytest.fixture
def queue_device(monkeypatch):
    """queue_device(marks_wait) opens the device and makes the host's clock its own; ceilings need little work then."""
    monkeypatch.setitem(ceilings.PRODUCTS, "cuda", (64,))
    monkeypatch.setitem(ceilings.LONG_S, "cuda", 1e-4)

    def make(marks_wait=True):
        device = QueueDevice(marks_wait)
        monkeypatch.setattr(timing.time, "perf_counter", device.clock)
        return device

    return make


def big_scale(device, n=1 << 20):
    x = device.zeros(n)
    return lambda number: update.scale(device, x, 2.0), 8 * n / BANDWIDTH * 1e3


def test_device_time_is_the_work_and_launch_time_is_the_call(queue_device):
    device = queue_device()
    call, work_ms = big_scale(device)
    (times,) = measure(device, [call], lambda: None, seconds=1, repeats=6)
    assert len(times.device) == len(times.launch) == 6
    np.testing.assert_allclose(times.device, work_ms + LAUNCH_S * 1e3, rtol=1e-3)  # the queue was empty
    np.testing.assert_allclose(times.launch, LAUNCH_S * 1e3, rtol=1e-3)


def test_a_busy_queue_hides_the_launch_from_the_device_time(queue_device):
    device = queue_device()
    call, work_ms = big_scale(device)
    (times,) = measure(device, [call], Flush(device, 1 << 20), seconds=1, repeats=6)
    np.testing.assert_allclose(times.device, work_ms, rtol=1e-3)


def test_the_first_call_stands_apart(queue_device):
    device = queue_device()
    call, work_ms = big_scale(device)
    runs = itertools.count()

    def compiling(number):
        device.now += 2.0 if next(runs) == 0 else 0.0
        call(number)

    (times,) = measure(device, [compiling], lambda: None, seconds=1, repeats=5)
    assert times.first == pytest.approx(2000 + work_ms, rel=1e-3)
    assert times.device.max() < 2 * work_ms and times.launch.max() < 1


def test_marks_that_do_not_wait_are_caught(queue_device):
    (case,) = cases_of("relu n1048576")
    (right,) = Bench(queue_device(), Settings(repeats=5), CEILINGS).run([case])
    assert right.status == "ok" and right.percent == pytest.approx(100, rel=0.01)
    (wrong,) = Bench(queue_device(marks_wait=False), Settings(repeats=5), CEILINGS).run([case])
    assert wrong.status == "refused" and "a measuring error" in wrong.note and "relu n1048576" in wrong.note
    assert wrong.times is None and "device_ms" not in wrong.plain()


def test_a_product_that_is_faster_than_the_peak_is_caught(queue_device):
    (case,) = cases_of("sgemm m32n32k32")
    assert Bench(queue_device(), Settings(repeats=5), CEILINGS).run([case])[0].status == "ok"
    slow = replace(CEILINGS, sgemm_gflop_per_s=10.0)
    bench = Bench(queue_device(marks_wait=False), Settings(repeats=5), slow)
    assert bench.run([case])[0].status == "ok"  # the launch takes long enough: nothing impossible was seen
    (case,) = cases_of("sgemm m512n512k512")
    assert bench.run([case])[0].status == "refused"


def test_ceilings_are_right_although_the_marks_lie(queue_device):
    for marks_wait in (True, False):
        device = queue_device(marks_wait)
        found = measure_ceilings(device, cache=4 << 20, product=256)
        assert found.copy_gb_per_s == pytest.approx(10, rel=0.02)
        assert found.stream_gb_per_s == pytest.approx(10, rel=0.02)
        assert found.sgemm_gflop_per_s == pytest.approx(2 * 256**3 / (2 * 256**3 / PEAK + LAUNCH_S) / 1e9, rel=0.5)
        assert found.copy_method.endswith("copy") and found.threads == 1 and found.cache_bytes == 4 << 20


def test_ceilings_that_were_too_low_are_raised_before_anything_is_refused(queue_device):
    bench = Bench(queue_device(), Settings(repeats=5), replace(CEILINGS, stream_gb_per_s=0.1, cached_gb_per_s=0.1))
    (result,) = bench.run(cases_of("relu n1048576"))
    assert result.status == "ok" and bench.ceilings.stream_gb_per_s == pytest.approx(10, rel=0.05)
    assert result.ceilings is bench.ceilings


def test_what_two_clocks_agree_on_is_believed_up_to_a_factor(queue_device, monkeypatch):
    for measured, status in ((4.0, "ok"), (1.0, "refused")):  # the device does 10 GB/s, whatever was measured
        low = replace(CEILINGS, stream_gb_per_s=measured, cached_gb_per_s=measured)
        monkeypatch.setattr(kernels, "measure_ceilings", lambda device, cache, low=low: low)
        bench = Bench(queue_device(), Settings(repeats=5), low)
        (result,) = bench.run(cases_of("relu n1048576"))
        assert result.status == status
    low = replace(CEILINGS, cached_gb_per_s=12.0)
    monkeypatch.setattr(kernels, "measure_ceilings", lambda device, cache: low)
    bench = Bench(queue_device(marks_wait=False), Settings(repeats=5), low)
    (result,) = bench.run(cases_of("relu n100000"))  # 80 us of work, 20 us until the call returns: the clocks differ
    assert result.status == "refused" and "got 0.02" in result.note


# ---- what may be believed

def test_floors_come_from_bytes_and_from_operations():
    large = 10**9
    floor = large / 12.0 / 1e6 / MARGIN
    CEILINGS.refuse("x", 1.001 * floor, large, 0)
    with pytest.raises(MeasuringError, match=re.escape("x: expected at least 64.1 ms for 1,000,000,000 bytes")):
        CEILINGS.refuse("x", 0.999 * floor, large, 0)
    with pytest.raises(MeasuringError, match="1,000,000,000 flops"):
        CEILINGS.refuse("x", 0.999 * 10 / MARGIN, 8, 10**9)
    small = 1 << 20  # may stay in the cache
    CEILINGS.refuse("x", 1.001 * small / 50.0 / 1e6 / MARGIN, small, 0)
    with pytest.raises(MeasuringError):
        CEILINGS.refuse("x", 0.999 * small / 50.0 / 1e6 / MARGIN, small, 0)


def test_the_ceiling_met_first_is_the_limit():
    assert CEILINGS.limit(10**6, 10**3) == "memory" and CEILINGS.least_ms(10**6, 10**3) == pytest.approx(0.1)
    assert CEILINGS.limit(10**3, 10**7) == "compute" and CEILINGS.least_ms(10**3, 10**7) == pytest.approx(0.1)


def test_raised_keeps_the_better_of_each():
    other = replace(CEILINGS, copy_gb_per_s=11.0, copy_method="other", stream_gb_per_s=11.0, sgemm_gflop_per_s=120.0)
    assert CEILINGS.raised(other) == replace(CEILINGS, copy_gb_per_s=11.0, copy_method="other", sgemm_gflop_per_s=120.0)


def test_ceilings_of_the_host():
    found = measure_ceilings(HostDevice(threads=2), cache=1 << 20, product=128)
    assert found.threads == 2 and found.cache_bytes == 1 << 20 and "copy" in found.copy_method
    assert 0 < found.copy_gb_per_s <= found.stream_gb_per_s < 10_000 and 0 < found.sgemm_gflop_per_s < 100_000
    assert 1 << 18 <= cache_bytes(HostDevice(threads=1)) <= 4 << 30


# ---- rounds and statistics

def test_spread_of_known_samples():
    assert Spread.of([3.0, 1.0, 100.0, 2.0, 4.0]) == Spread(3.0, 1.0, 1.0, 5)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 0.0, 1)


def test_rounds_alternate_and_everything_is_preceded_by_the_flush(fast):
    seen = []
    calls = [lambda number, name=name: seen.append(f"{name}{number}") for name in "ab"]
    measure(fast, calls, lambda: seen.append("-"), seconds=1, repeats=3)
    assert "".join(seen) == "a0b0" "a1b1" "-a0-b0" "-a1-b1" "-a2-b2"


@pytest.mark.parametrize(("work_s", "seconds", "rounds"), [(1.0, 0.1, 5), (0.1, 1.0, 10), (1e-4, 10.0, 200)])
def test_number_of_rounds(queue_device, work_s, seconds, rounds):
    device = queue_device()
    (times,) = measure(device, [lambda number: device.queue(work_s)], lambda: None, seconds=seconds)
    assert len(times.device) == pytest.approx(rounds, abs=1)


def test_sets_of_arrays_rotate(monkeypatch):
    (case,) = cases_of("relu n1000")
    used = []
    original = activation.relu
    monkeypatch.setattr(HostDevice, "_run", _spy(HostDevice._run, used))
    (result,) = Bench(HostDevice(threads=1), Settings(repeats=9), CEILINGS).run([case])
    assert result.status == "ok" and activation.relu is original
    assert len(set(used[-9:])) == 3 and used[-3:] == used[-6:-3]


def _spy(run, used):
    def spied(self, family, signature, work, values, block):
        if signature.name == "relu":
            used.append(values[0].ctypes.data)
        run(self, family, signature, work, values, block)

    return spied


def test_flush_reads_twice_the_cache():
    device = QueueDevice()
    before = device.free
    Flush(device, 1 << 20)()
    assert device.free - before == pytest.approx((2 << 20) / BANDWIDTH + LAUNCH_S, rel=0.05)


def test_launch_time_of_the_host_holds_no_kernel():
    device = HostDevice(threads=1)
    (case,) = cases_of("sgemm m600n600k600")
    arrays = case.inputs(1)
    run = case.bind(device)
    run(arrays)
    (times,) = measure(device, [lambda number: run(arrays)], lambda: None, seconds=0, repeats=3)
    assert 0 < host_launch_ms(device, case, arrays) < 0.5 * Spread.of(times.device).least
    (copy,) = cases_of("copy n1000")
    assert host_launch_ms(device, copy, copy.inputs(1)) is None  # NumPy's, no launch of ours


def test_marks_of_cuda_wait_for_the_work_between_them(cupy):
    device = open_device("cuda:1")
    x, y = device.upload(np.full(1000, -1, np.float32)), device.empty(1000)
    first = device.mark()
    activation.relu(device, x, y)
    last = device.mark()
    with pytest.raises(RuntimeError, match="not ready"):
        cupy_time(first, last)
    assert device.elapsed_ms(first, last) > 0
    assert not y.host.any()  # the kernel has run
    ms, launch_ms = timed(device, lambda number: activation.relu(device, x, y), 0)
    assert ms > 0 and launch_ms > 0


def cupy_time(first, last):
    import cupy

    return cupy.cuda.get_elapsed_time(first, last)
