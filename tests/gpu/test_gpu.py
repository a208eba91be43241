"""On a GPU (make test-gpu): products, convolutions and a short training against the host, then timings.

The kernels' own tests run there too: each that takes the fixture `device` has a case `cuda`.
"""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file
from sprint.engine.config import TrainConfig
from sprint.engine.report import Report
from sprint.engine.trainer import train
from sprint.kernels.conv import Conv
from sprint.kernels.conv_choice import Choices
from sprint.kernels.conv_shape import ConvShape
from sprint.kernels.cuda import CudaDevice
from sprint.kernels.device import elements
from sprint.kernels.gemm import gemm
from sprint.kernels.host import HostDevice
from sprint.kernels.im2col import im2col

pytestmark = pytest.mark.gpu
REPEATS = 10
# Nothing square, strides above and below the filter, pads that differ, one image, more channels than a tile is wide.
SHAPES = [ConvShape(3, 2, 9, 14, 5, 3, 2, (2, 1), (0, 1)), ConvShape(70, 1, 6, 5, 66, 3, 3, (1, 1), (1, 1)),
          ConvShape(1, 3, 12, 7, 4, 2, 5, (3, 2), (1, 2))]


@pytest.fixture(scope="module")
def gpu():
    return CudaDevice(0)


@pytest.fixture
def scaled(request):
    """scaled(n): a size as it is on a GPU, and small on the stand-in."""
    return (lambda n: max(1, n // 32)) if request.config.getoption("--stand-in") else (lambda n: n)


@pytest.mark.parametrize("algo", ["blas", "tiled"])
@pytest.mark.parametrize("trans_a, trans_b", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("m, n, k", [(65, 130, 9), (1, 97, 257), (130, 3, 31)])
def test_products_of_strided_matrices(gpu, rng, algo, trans_a, trans_b, m, n, k):
    shapes = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n), (m, n)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    wide = [gpu.upload(np.pad(array, ((0, 0), (2, 3)))) for array in arrays]
    gemm(gpu, *(array[:, 2:-3] for array in wide), trans_a=trans_a, trans_b=trans_b, alpha=-0.5, beta=2.0, algo=algo)
    a, b, c = (array.astype(np.float64) for array in arrays)
    expected = -0.5 * (a.T if trans_a else a) @ (b.T if trans_b else b) + 2.0 * c
    result = gpu.download(wide[2])
    np.testing.assert_allclose(result[:, 2:-3], expected, rtol=1e-5, atol=2**-23 * k * np.sqrt(k))
    assert not result[:, :2].any() and not result[:, -3:].any()


@pytest.mark.parametrize("algo", ["explicit", "implicit"])
@pytest.mark.parametrize("shape", SHAPES)
def test_convolutions_equal_the_hosts(gpu, rng, algo, shape):
    values = {name: rng.standard_normal(size).astype(np.float32)
              for name, size in (("x", shape.x), ("w", shape.w), ("b", (shape.K,)), ("dy", shape.y))}
    expected = convolve(HostDevice(threads=1), shape, "explicit", values)
    for name, result in convolve(gpu, shape, algo, values).items():
        terms = max(shape.rows, shape.columns)
        np.testing.assert_allclose(result, expected[name], rtol=1e-5, atol=2**-22 * terms, err_msg=name)


def convolve(device, shape, algo, values):
    """Output and all gradients of one convolution, on the host; outputs start as NaN."""
    conv = Conv(device, shape, algo, choices=Choices())
    x, w, b, dy = (device.upload(values[name]) for name in ("x", "w", "b", "dy"))
    sizes = (shape.y, shape.x, shape.w, (shape.K,))
    y, dx, dw, db = (device.upload(np.full(size, np.nan, np.float32)) for size in sizes)
    workspace = device.empty(-(-conv.workspace_bytes() // 4))
    conv.forward(x, w, b, y, True, workspace)
    conv.backward_data(dy, w, dx, workspace)
    conv.backward_filter(x, dy, dw, db, workspace)
    return {name: device.download(array) for name, array in (("y", y), ("dx", dx), ("dw", dw), ("db", db))}


def run(folder, device, conv_algo, steps):
    """Losses of a short training, and the bytes of all arrays of its last checkpoint."""
    config = TrainConfig("cnn-a", data="digits", image_size=28, width=0.25, subbatch=4, steps=steps, limit=64,
                         device=device, conv_algo=conv_algo, log_every=1, out=str(folder))
    assert train(config, Report(quiet=True))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    arrays = load_file(sorted(folder.glob("**/*.safetensors"))[-1])
    losses = [record["loss"] for record in map(json.loads, lines) if "loss" in record]
    return losses, {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("conv_algo", ["explicit", "implicit"])
def test_training_equals_the_hosts_and_repeats_in_bytes(tmp_path, gpu, scaled, conv_algo):
    if scaled(32) == 1 and conv_algo == "implicit":
        pytest.skip("minutes on the stand-in")
    steps = max(3, scaled(32))
    host, _ = run(tmp_path / "host", "host", "explicit", steps)
    cuda, weights = run(tmp_path / "cuda", "cuda", conv_algo, steps)
    _, again = run(tmp_path / "again", "cuda", conv_algo, steps)
    assert len(cuda) >= steps
    np.testing.assert_allclose(cuda[:3], host[:3], rtol=1e-3)  # rounding differs, and grows with the steps
    assert weights == again


def test_two_workers_on_one_gpu_do_not_disturb_each_other(rng):
    """Each has its own stream, staging buffers and cuBLAS handle."""
    devices = [CudaDevice(0), CudaDevice(0)]
    inputs = [rng.standard_normal((60, 40)).astype(np.float32) for _ in devices]
    results = {}

    def work(i):
        device, c = devices[i], devices[i].zeros((60, 60))
        a = device.upload(inputs[i])
        for _ in range(20):
            device.sgemm(a, a, c, trans_b=True, alpha=0.5, beta=0.5)
        results[i] = device.download(c)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, a in enumerate(inputs):
        expected = (1 - 0.5**20) * a.astype(np.float64) @ a.T
        np.testing.assert_allclose(results[i], expected, rtol=1e-4, atol=1e-3)


def milliseconds(device, call):
    """Time of one call, as the device itself measures it, after a first call that counts as warm-up."""
    call()
    first = device.mark()
    for _ in range(REPEATS):
        call()
    return device.elapsed_ms(first, device.mark()) / REPEATS


def cases(device, scaled):
    """(name, billions of operations or of bytes, call) for the timings."""
    n = scaled(1024)
    a, b, c = (device.zeros((n, n)) for _ in range(3))
    yield f"sgemm {n}", "GFLOP", 2e-9 * n**3, lambda: device.sgemm(a, b, c)
    shape = ConvShape(scaled(32), scaled(32), 62, 62, scaled(64), 3, 3)
    x, col = device.zeros(shape.x), device.zeros((shape.rows, shape.columns))
    yield "im2col", "GB", 4e-9 * (x.size + col.size), lambda: im2col(device, x, col, shape)
    w, bias, y, dw = device.zeros(shape.w), device.zeros(shape.K), device.zeros(shape.y), device.zeros(shape.w)
    for algo in ("explicit", "implicit"):
        conv = Conv(device, shape, algo, choices=Choices())
        work = device.empty(-(-conv.workspace_bytes() // 4))
        flops = 2e-9 * shape.macs
        yield f"forward {algo}", "GFLOP", flops, lambda c=conv, t=work: c.forward(x, w, bias, y, True, t)
        yield f"to x {algo}", "GFLOP", flops, lambda c=conv, t=work: c.backward_data(y, w, x, t)
        yield f"to w {algo}", "GFLOP", flops, lambda c=conv, t=work: c.backward_filter(x, y, dw, bias, t)
    flat, count = device.zeros(scaled(1 << 24)), elements(scaled(1 << 24))
    yield "scale", "GB", 8e-9 * flat.size, lambda: device.launch("update", "scale", count, flat, 1.0, flat.size)


def test_timings(gpu, scaled, capsys):
    """Prints a table: GPU, and the host beside it."""
    host = HostDevice()
    with capsys.disabled():
        print(f"\n{gpu.describe()}\n{host.describe()}")
        print(f"{'case':<20} {'GPU ms':>9} {'a second':>14} {'host ms':>9}")
        for on_gpu, on_host in zip(cases(gpu, scaled), cases(host, scaled), strict=True):
            name, unit, amount, _ = on_gpu
            gpu_ms, host_ms = milliseconds(gpu, on_gpu[-1]), milliseconds(host, on_host[-1])
            print(f"{name:<20} {gpu_ms:9.3f} {1e3 * amount / gpu_ms:8.1f} {unit:<5} {host_ms:9.3f}")
            assert gpu_ms > 0
