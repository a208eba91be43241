"""The CUDA device without a GPU: a stand-in for CuPy runs the kernels and checks how it is called."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading

import numpy as np
import pytest
from sprint.kernels import cuda, source
from sprint.kernels.cuda import CudaDevice
from sprint.kernels.device import elements, open_device, rows, tiles
from sprint.kernels.host import HostDevice
from sprint.kernels.pinned import STAGING_BYTES

IM2COL_X = (2, 3, 5, 9)


@pytest.fixture
def gpu(cupy):
    return CudaDevice(0)


def im2col_arguments(device, rng):
    """x(2,3,5,9), filter (3,2), stride (2,1), pad (0,1): arrays on `device` and the scalars of kernel im2col."""
    x = rng.normal(size=IM2COL_X).astype(np.float32)
    p, q = 2, 10
    col = device.upload(np.full((2 * 3 * 2, 3 * p * q), np.nan, np.float32))
    return device.upload(x), col, 2, 3, 5, 9, 3, 2, p, q, 2, 1, 0, 1, 0, 3


def launch_im2col(device, arguments, **options):
    device.launch("im2col", "im2col", elements(arguments[1].size), *arguments, **options)
    return device.download(arguments[1])


@pytest.mark.parametrize("block", [None, 32, 128])
def test_kernel_gives_what_the_host_gives(gpu, fast, cupy, rng, block):
    seed = rng.bit_generator.state
    expected = launch_im2col(fast, im2col_arguments(fast, rng))
    rng.bit_generator.state = seed
    assert np.array_equal(launch_im2col(gpu, im2col_arguments(gpu, rng), block=block), expected)
    launch = cupy.launches[-1]
    threads = block or 256
    assert launch.block == (threads, 1, 1) and launch.grid == (-(-expected.size // threads), 1, 1)


def test_scalars_get_their_declared_type(gpu, cupy, rng):
    launch_im2col(gpu, im2col_arguments(gpu, rng))
    assert [type(a) for a in cupy.launches[-1].args[2:]] == [np.int64] * 14


def test_nothing_to_do_launches_nothing(gpu, cupy):
    empty = gpu.empty((2, 0, 5, 9)), gpu.empty((12, 0))
    gpu.launch("im2col", "im2col", elements(0), *empty, 2, 0, 5, 9, 3, 2, 2, 10, 2, 1, 0, 1, 0, 0)
    assert cupy.launches == []


@pytest.mark.parametrize("change, error, message", [
    ({0: lambda d: np.zeros(IM2COL_X, np.float32)}, TypeError, "expected x as a cupy array, got ndarray"),
    ({0: lambda d: d.zeros(IM2COL_X, np.float64)}, TypeError, "expected x as float32, got float64"),
    ({0: lambda d: d.zeros((2, 3, 5, 18))[..., ::2]}, ValueError, "expected x C-contiguous, got shape"),
    ({0: lambda d: CudaDevice(1).zeros(IM2COL_X)}, RuntimeError, "expected x on cuda:0, got cuda:1"),
    ({2: lambda d: 2.0}, TypeError, "expected C as i64, got float"),
    ({2: lambda d: 2**63}, ValueError, "expected C to fit i64, got 9223372036854775808"),
])
def test_wrong_arguments_are_refused(gpu, cupy, rng, change, error, message):
    arguments = list(im2col_arguments(gpu, rng))
    for i, make in change.items():
        arguments[i] = make(gpu)
    with pytest.raises(error, match=f"im2col: {message}"):
        launch_im2col(gpu, arguments)
    with pytest.raises(TypeError, match="im2col: expected 16 arguments, got 15"):
        launch_im2col(gpu, arguments[:-1])
    assert cupy.launches == []


@pytest.mark.parametrize("index", [0, 1])
def test_a_thread_works_on_the_device_it_was_given(cupy, rng, index):
    devices = [CudaDevice(0), CudaDevice(1)]
    arguments = [im2col_arguments(device, np.random.default_rng(i)) for i, device in enumerate(devices)]
    results = {}

    def work():
        results[index] = launch_im2col(devices[index], arguments[index])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    expected = launch_im2col(devices[index], arguments[index])
    assert np.array_equal(results[index], expected) and not np.isnan(expected).any()


def test_every_family_is_compiled_before_the_first_launch(cupy):
    CudaDevice(1)
    assert cupy.compiled == [(1, family) for family in source.families()]


def test_each_device_has_a_stream_of_its_own(cupy):
    first, second = CudaDevice(0), CudaDevice(0)
    assert first._stream is not second._stream and first._stream.non_blocking


@pytest.mark.parametrize("mode, number", [("fp32", 2), ("tf32", 3)])
def test_math_mode_is_set_and_said(cupy, mode, number):
    device = CudaDevice(0, math_mode=mode)
    assert list(cupy.math_modes.values()) == [number]
    assert device.describe() == f"cuda:0 (Fake GPU, compute capability 9.0, {mode})"


@pytest.mark.parametrize("trans_a, trans_b", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("alpha, beta", [(1.0, 0.0), (-0.5, 1.0), (2.0, 0.25)])
def test_sgemm_maps_row_major_matrices_with_strided_rows(gpu, rng, trans_a, trans_b, alpha, beta):
    m, n, k = 5, 7, 3
    a = rng.normal(size=(k, m) if trans_a else (m, k)).astype(np.float32)
    b = rng.normal(size=(n, k) if trans_b else (k, n)).astype(np.float32)
    c = rng.normal(size=(m, n)).astype(np.float32) if beta else np.full((m, n), np.nan, np.float32)
    wide = [gpu.upload(np.pad(array, ((0, 0), (2, 3)))) for array in (a, b, c)]
    inner = [array[:, 2:-3] for array in wide]
    gpu.sgemm(*inner, trans_a=trans_a, trans_b=trans_b, alpha=alpha, beta=beta)
    a64, b64 = a.T if trans_a else a, b.T if trans_b else b
    expected = alpha * a64.astype(np.float64) @ b64.astype(np.float64) + (beta * c if beta else 0)
    result = gpu.download(wide[2])
    np.testing.assert_allclose(result[:, 2:-3], expected, rtol=1e-5, atol=1e-6)
    assert not result[:, :2].any() and not result[:, -3:].any()


def test_sgemm_of_nothing(gpu, cupy):
    for beta, expected in ((0.0, 0), (0.5, 2)):
        c = gpu.upload(np.full((2, 3), 4, np.float32))
        gpu.sgemm(gpu.empty((2, 0)), gpu.empty((0, 3)), c, beta=beta)
        assert (gpu.download(c) == expected).all()
    gpu.sgemm(gpu.empty((0, 2)), gpu.empty((2, 3)), gpu.empty((0, 3)))


def test_sgemm_refuses_what_the_host_refuses(gpu, fast):
    for device in (gpu, fast):
        a, b, c = device.zeros((2, 3)), device.zeros((3, 4)), device.zeros((2, 4))
        with pytest.raises(TypeError, match="sgemm: expected a as float32, got float64"):
            device.sgemm(device.zeros((2, 3), np.float64), b, c)
        with pytest.raises(ValueError, match="sgemm: expected b row-major"):
            device.sgemm(a, device.zeros((4, 3)).transpose(1, 0), c)
        with pytest.raises(ValueError, match="got k=3 and 4"):
            device.sgemm(a, device.zeros((4, 4)), c)


@pytest.mark.parametrize("size", [0, 1, STAGING_BYTES // 4, 2 * STAGING_BYTES // 4 + 5, 5 * STAGING_BYTES // 4 - 3])
def test_copies_of_any_length_survive_their_source(gpu, rng, size):
    values = rng.normal(size=size).astype(np.float32)
    source_values = values.copy()
    array = gpu.upload(source_values)
    source_values.fill(np.nan)
    twin = gpu.empty(size)
    gpu.copy(twin, array)
    array.fill(0)
    assert np.array_equal(gpu.download(twin), values)
    back = np.full(size, np.nan, np.float32)
    gpu.copy(back, twin)
    assert np.array_equal(back, values)


def test_copy_refuses_what_it_cannot_do(gpu):
    array = gpu.zeros((4, 6))
    with pytest.raises(ValueError, match=r"copy: expected \(4, 6\) float32, got \(6, 4\) float32"):
        gpu.copy(array, np.zeros((6, 4), np.float32))
    with pytest.raises(ValueError, match="copy: expected src C-contiguous"):
        gpu.copy(array, np.zeros((4, 12), np.float32)[:, ::2])
    with pytest.raises(RuntimeError, match="copy: expected src on cuda:0, got cuda:1"):
        gpu.copy(array, CudaDevice(1).zeros((4, 6)))


def test_uploads_keep_shape_and_dtype(gpu):
    for values in (np.arange(24, dtype=np.uint8).reshape(2, 3, 4)[:, ::2], np.array(7, np.int32), np.eye(3)):
        result = gpu.download(gpu.upload(values))
        assert result.dtype == values.dtype and np.array_equal(result, values)


def test_ranges_end_also_after_an_error(gpu, cupy):
    with gpu.range("layer"), pytest.raises(ValueError, match="inside"), gpu.range("step"):
        raise ValueError("inside")
    assert cupy.ranges == ["layer", "step", None, None]


def test_time_between_marks_is_that_of_the_stream(gpu):
    x = gpu.zeros(4)
    first = gpu.mark()
    gpu.launch("update", "scale", elements(4), x, 2.0, 4)
    assert 0 < gpu.elapsed_ms(first, gpu.mark()) < 60_000


def test_zeros_and_memory(gpu):
    assert not gpu.download(gpu.zeros((3, 2), np.int32)).any()
    assert (gpu.memory().available, gpu.memory().total) == ((1 << 30) + (1 << 20), 2 << 30)


def test_rows_and_tiles_are_planned(gpu, cupy):
    """Every block kind reaches the launch: a capped grid of rows, an explicit grid of tiles."""
    signature = source.signatures("im2col")["im2col"]
    assert signature.name == "im2col"
    x, col = gpu.zeros((1, 1, 1, 1)), gpu.zeros((1, 1))
    extents = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1)
    gpu.launch("im2col", "im2col", rows(70000), x, col, *extents)
    gpu.launch("im2col", "im2col", tiles((2, 3, 4), (8, 4, 1)), x, col, *extents)
    assert [(call.grid, call.block) for call in cupy.launches] == [
        ((65535, 1, 1), (256, 1, 1)), ((2, 3, 4), (8, 4, 1))]


def test_errors_of_cuda_become_one_line(cupy):
    device = CudaDevice(0)
    with pytest.raises(RuntimeError, match=r"allocate .* on cuda:0: Out of memory allocating") as caught:
        device.empty((1 << 20, 1 << 10))
    assert "\n" not in str(caught.value)
    cupy.fault = "pool.cu(3): error: no such thing\n1 error detected"
    with pytest.raises(RuntimeError, match=r"^compile \w+.cu on cuda:0: pool.cu\(3\): error: no such thing$"):
        CudaDevice(0)
    cupy.fault = ""
    with pytest.raises(RuntimeError, match="cuda:2: expected a device of 0 to 1, got 2"):
        CudaDevice(2)


def test_auto_takes_cuda_where_it_can_be_used(cupy):
    assert cuda.missing() is None
    assert isinstance(open_device("auto"), CudaDevice)
    assert open_device("cuda:1", math_mode="tf32").math_mode == "tf32"


@pytest.mark.parametrize("reason", ["hidden", "no driver", "broken", "no device"])
def test_auto_takes_the_host_where_cuda_is_missing(cupy, monkeypatch, reason):
    if reason == "hidden":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    elif reason == "no driver":
        monkeypatch.setattr(cuda, "_driver_found", lambda: False)
    elif reason == "broken":
        monkeypatch.delattr(sys.modules["cupy_backends.cuda.libs"], "cublas")
    else:
        def no_device():
            raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected\nsecond line")

        monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "getDeviceCount", no_device)
    said = cuda.missing()
    assert said and "\n" not in said
    assert isinstance(open_device("auto"), HostDevice)
    with pytest.raises(RuntimeError, match="cuda:0: "):
        open_device("cuda")


def test_without_cupy_nothing_imports_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'sprint-cnn[cuda12]'" in cuda.missing()
    code = ("import sys; from sprint.kernels import cuda, device; cuda.missing(); device.open_device('host'); "
            "sys.exit('cupy' in sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_stage_is_one_page_locked_vector_and_copies_wait_only_where_they_must(gpu, cupy, rng):
    stage, vectors = gpu.stage(7), rng.normal(size=(2, 7)).astype(np.float32)
    before = len(cupy.pinned)
    arrays = [gpu.empty(7), gpu.empty(7)]
    for array, vector in zip(arrays, vectors.copy(), strict=True):  # the second copy must not overtake the first
        stage.up(array, vector)
        vector.fill(np.nan)
    assert len(gpu._stream.work) > gpu._stream.done  # queued, and nobody has waited for it
    down = [stage.down(array).copy() for array in arrays]
    assert np.array_equal(down, vectors) and np.shares_memory(stage.down(arrays[0]), stage.down(arrays[1]))
    assert len(cupy.pinned) == before
    for wrong in (lambda: stage.up(arrays[0], np.zeros(1, np.float32)), lambda: stage.down(gpu.zeros(8))):
        with pytest.raises(ValueError, match=r"copy: expected \(7,\) float32, got"):
            wrong()


def test_on_the_host_nothing_comes_down(fast):
    stage, array = fast.stage(3), fast.zeros(3)
    stage.up(array, np.arange(3, dtype=np.float32))
    assert stage.down(array) is array and array.tolist() == [0, 1, 2]
