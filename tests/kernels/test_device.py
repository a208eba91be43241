"""The rules that all devices share: work, launch plans, checks of arguments, names of devices."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from sprint.kernels import cuda, source
from sprint.kernels.conv_shape import ConvShape
from sprint.kernels.cuda import CudaDevice
from sprint.kernels.device import (
    check_count,
    check_scalar,
    elements,
    leading_dimension,
    open_device,
    plan_launch,
    rows,
    tiles,
)
from sprint.kernels.host import HostDevice
from sprint.kernels.simt import SimtDevice

SIGNATURE = source.parse_signatures(
    'extern "C" __global__ void k(const float* x, int i, i64 n, unsigned u, unsigned char b, float f) {}')["k"]
PARAMETERS = {p.name: p for p in SIGNATURE.parameters}


@pytest.fixture(params=["fast", "simt", "cuda"])
def any_device(request):
    """One device of each kind; cuda by the stand-in for CuPy."""
    if request.param == "cuda":
        request.getfixturevalue("cupy")
        return CudaDevice(0)
    return HostDevice(threads=2) if request.param == "fast" else SimtDevice(block=32)


@pytest.mark.parametrize("work, block, grid, threads", [
    (elements(0), 256, 0, 256),
    (elements(1), 256, 1, 256),
    (elements(257), 256, 2, 256),
    (elements(2**31 + 1), 32, 2**26 + 1, 32),
    (elements(2**63 - 1), 1024, 2**31 - 1, 1024),
    (rows(3), 128, 3, 128),
    (rows(65536), 64, 65535, 64),
    (rows(2**40), 64, 65535, 64),
])
def test_plan_of_a_launch(work, block, grid, threads):
    assert plan_launch(work, block) == ((grid, 1, 1), (threads, 1, 1))


def test_column_buffer_of_more_than_2_31_elements_is_planned():
    """x=(1311,64,32,32), filter 5, pad 2: 2,147,942,400 elements of columns."""
    shape = ConvShape.of((64, 1311, 32, 32), (1, 64, 5, 5), pad=(2, 2))
    assert shape.rows * shape.columns == 2_147_942_400
    (grid, _, _), (block, _, _) = plan_launch(elements(shape.rows * shape.columns))
    assert (grid - 1) * block < 2_147_942_400 <= grid * block


def test_tiles_keep_their_grid():
    work = tiles((5, 3, 2), (16, 8, 1))
    assert work.count == 30 and plan_launch(work) == ((5, 3, 2), (16, 8, 1))
    assert tiles((0, 3, 2), (16, 8, 1)).count == 0


@pytest.mark.parametrize("block", [0, 16, 33, 2048, -32])
def test_blocks_are_whole_warps(block):
    with pytest.raises(ValueError, match=f"block of 32 to 1024 threads in whole warps, got {block}"):
        plan_launch(elements(5), block)


@pytest.mark.parametrize("make, error, message", [
    (lambda: elements(-1), ValueError, "0 to 2^63-1 items of work, got -1"),
    (lambda: rows(2**63), ValueError, "0 to 2^63-1 items of work, got 9223372036854775808"),
    (lambda: elements(2.5), TypeError, "whole number of items of work, got float"),
    (lambda: tiles((1, 1, 1), (32, 33, 1)), ValueError, "block of 1 to 1024 threads, got (32, 33, 1)"),
    (lambda: tiles((1, 1, 1), (32, 0, 1)), ValueError, "block of 1 to 1024 threads, got (32, 0, 1)"),
    (lambda: tiles((1, 65536, 1), (32, 1, 1)), ValueError, "got (1, 65536, 1)"),
    (lambda: tiles((2**31, 1, 1), (32, 1, 1)), ValueError, "got (2147483648, 1, 1)"),
])
def test_impossible_work_is_refused(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value) and str(caught.value).startswith("launch: expected ")


@pytest.mark.parametrize("name, value, expected", [
    ("i", 2**31 - 1, 2**31 - 1), ("i", np.int64(-(2**31)), -(2**31)), ("n", 2**63 - 1, 2**63 - 1),
    ("u", 2**32 - 1, 2**32 - 1), ("b", np.uint8(255), 255), ("i", True, 1),
    ("f", 3, 3.0), ("f", np.float64(0.1), 0.1), ("f", float("-inf"), float("-inf")), ("f", 3.4e38, 3.4e38),
])
def test_scalars_that_fit(name, value, expected):
    got = check_scalar("k", PARAMETERS[name], value)
    assert got == expected and type(got) is type(expected)


def test_nan_is_a_scalar():
    assert np.isnan(check_scalar("k", PARAMETERS["f"], float("nan")))


@pytest.mark.parametrize("name, value", [
    ("i", 2**32 + 3), ("i", 2**31), ("i", -(2**31) - 1), ("n", 2**63), ("u", -1), ("u", 2**32), ("b", 256),
    ("f", 1e39), ("f", -1e39), ("f", 10**400),
])
def test_scalars_that_would_wrap_are_refused(name, value):
    with pytest.raises(ValueError, match=f"k: expected {name} to fit"):
        check_scalar("k", PARAMETERS[name], value)


@pytest.mark.parametrize("name, value", [("i", 2.0), ("n", "3"), ("n", None), ("f", "1"), ("f", 1j), ("i", np.ones(1))])
def test_scalars_of_another_kind_are_refused(name, value):
    with pytest.raises(TypeError, match=f"k: expected {name} as "):
        check_scalar("k", PARAMETERS[name], value)


def test_number_of_arguments():
    with pytest.raises(TypeError, match="k: expected 6 arguments, got 2"):
        check_count(SIGNATURE, (1, 2))


def launch_scale(device, x):
    device.launch("update", "scale", elements(x.size), x, 0.5, x.size)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.int32, np.uint8])
def test_another_dtype_is_refused_everywhere(any_device, dtype):
    with pytest.raises(TypeError, match=f"expected x as float32, got {np.dtype(dtype)}"):
        launch_scale(any_device, any_device.zeros(5, dtype))


@pytest.mark.parametrize("view", [
    lambda x: x[:, ::2], lambda x: x.transpose(0, 2, 3, 1), lambda x: x[::-1], lambda x: x[:, :, 1:3], lambda x: x.T,
])
def test_views_are_refused_everywhere(any_device, view):
    x = any_device.upload(np.ones((2, 3, 4, 5), np.float32))
    with pytest.raises(ValueError, match=r"expected x C-contiguous, got shape .* with strides"):
        launch_scale(any_device, view(x))
    assert (any_device.download(x) == 1).all()


def test_contiguous_views_are_taken_everywhere(any_device):
    x = any_device.upload(np.ones((4, 3), np.float32))
    launch_scale(any_device, x[1:3])
    launch_scale(any_device, x.reshape(12)[11:])
    assert any_device.download(x).sum() == 12 - 0.5 * 7


def test_int64_labels_are_refused_everywhere(any_device):
    arguments = any_device.zeros((4, 3)), any_device.zeros(3, np.int64), any_device.zeros(3, np.int32)
    names = [p.name for p in source.signatures("softmax")["label_rank"].parameters]
    with pytest.raises(TypeError, match="label_rank: expected labels as int32, got int64"):
        any_device.launch("softmax", "label_rank", elements(3), *arguments, *[1] * (len(names) - 3))


@pytest.mark.parametrize("make", [lambda: np.broadcast_to(np.float32(1), (5,)), lambda: [1.0], lambda: 1.0])
@pytest.mark.parametrize("mode", [HostDevice, SimtDevice])
def test_what_is_no_array_of_its_own_is_refused(mode, make):
    with pytest.raises((TypeError, ValueError), match="expected x "):
        mode().launch("update", "scale", elements(1), make(), 0.5, 1)


def test_read_only_and_unaligned_arrays_are_refused(fast):
    x = np.ones(8, np.float32)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="scale: expected x writeable"):
        launch_scale(fast, x)
    unaligned = np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float32)
    assert unaligned.ctypes.data % ctypes.alignment(ctypes.c_float)
    with pytest.raises(ValueError, match="scale: expected x aligned"):
        launch_scale(fast, unaligned)


@pytest.mark.parametrize("array, expected", [
    (np.zeros((4, 6), np.float32)[:, 1:4], 6), (np.zeros((1, 6), np.float32)[:, 1:4], 3),
    (np.zeros((4, 0), np.float32), 1), (np.zeros((3, 1), np.float32), 1),
])
def test_leading_dimension(array, expected):
    assert leading_dimension(array) == expected


@pytest.mark.parametrize("spec, name", [("host", "host:0"), ("host:3", "host:3")])
def test_open_host_devices(spec, name):
    device = open_device(spec, threads=1)
    assert (device.name, device.kind, device.threads) == (name, "host", 1)


def test_auto_without_cuda_is_the_host(monkeypatch):
    monkeypatch.setattr(cuda, "missing", lambda: "no GPU here; buy one")
    assert open_device().kind == "host"
    with pytest.raises(RuntimeError, match="cuda:1: no GPU here; buy one"):
        open_device("cuda:1")


@pytest.mark.parametrize("spec", ["", "gpu", "host:", "host:-1", "cuda:x", "auto:0", "cuda:1:2", "cuda:00001"])
def test_other_specs_are_refused(spec):
    with pytest.raises(ValueError, match=r"device: expected auto, host, host:I, cuda or cuda:I \(.*\), got"):
        open_device(spec)


def test_other_math_modes_are_refused():
    with pytest.raises(ValueError, match="math: expected fp32 or tf32, got 'fp16'"):
        open_device("host", math_mode="fp16")
