"""The matrix product: device BLAS on the host, our tiles in simt mode, against float64 sums."""

from __future__ import annotations

import numpy as np
import pytest
from sprint.kernels import source
from sprint.kernels.device import tiles
from sprint.kernels.gemm import LARGE, LARGE_TILES, gemm, tile_count
from sprint.kernels.host import HostDevice
from sprint.kernels.simt import ORDERS, SimtDevice

SIZES = [(1, 1, 1), (3, 5, 7), (64, 64, 8), (65, 130, 9), (130, 67, 31), (1, 97, 257), (101, 1, 16), (4, 8, 1)]
TRANSPOSES = [(False, False), (False, True), (True, False), (True, True)]
BLAS, TILED = "blas", "tiled"


@pytest.fixture(params=["fast", *ORDERS], ids=["fast", *(f"simt-256-{order}" for order in ORDERS)])
def runner(request):
    """(device, algorithm): BLAS on the host, tiles in each thread order."""
    if request.param == "fast":
        return HostDevice(threads=2), BLAS
    return SimtDevice(order=request.param, seed=7, sanitize=request.config.getoption("--sanitize")), TILED


def matrix(rng, rows, columns, apart=0):
    """A random matrix whose rows lie `apart` elements further apart than they are long."""
    return rng.standard_normal((rows, columns + apart)).astype(np.float32)[:, apart // 2 : apart // 2 + columns]


def operands(rng, m, n, k, trans_a, trans_b, apart=0):
    a = matrix(rng, *((k, m) if trans_a else (m, k)), apart)
    b = matrix(rng, *((n, k) if trans_b else (k, n)), apart)
    return a, b


def reference(a, b, trans_a, trans_b):
    """Sums of products in float64, one dot product an element."""
    rows = [a[:, i] if trans_a else a[i] for i in range(a.shape[trans_a])]
    columns = [b[j] if trans_b else b[:, j] for j in range(b.shape[not trans_b])]
    rows, columns = np.array(rows, np.float64), np.array(columns, np.float64)
    return (rows[:, None] * columns[None]).sum(axis=2)


def close(c, exact, k):
    """float32 sums of k products of numbers near 1: k roundings of 2^-24, each of at most sqrt(k)."""
    return np.testing.assert_allclose(c, exact, rtol=1e-6, atol=2**-23 * k * max(1, np.sqrt(k)))


@pytest.mark.parametrize(("trans_a", "trans_b"), TRANSPOSES)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_equals_float64(runner, rng, poison, m, n, k, trans_a, trans_b):
    device, algo = runner
    a, b = operands(rng, m, n, k, trans_a, trans_b)
    c = poison((m, n))
    gemm(device, a, b, c, trans_a=trans_a, trans_b=trans_b, algo=algo)
    close(c, reference(a, b, trans_a, trans_b), k)


@pytest.mark.parametrize(("trans_a", "trans_b"), TRANSPOSES)
def test_alpha_beta_and_rows_apart(runner, rng, trans_a, trans_b):
    device, algo = runner
    a, b = operands(rng, 37, 70, 19, trans_a, trans_b, apart=6)
    whole = rng.standard_normal((37, 90)).astype(np.float32)
    before, c = whole.copy(), whole[:, 4:74]
    gemm(device, a, b, c, trans_a=trans_a, trans_b=trans_b, alpha=-0.5, beta=2.0, algo=algo)
    close(c, -0.5 * reference(a, b, trans_a, trans_b) + 2.0 * before[:, 4:74], 19)
    np.testing.assert_array_equal(whole[:, :4], before[:, :4])
    np.testing.assert_array_equal(whole[:, 74:], before[:, 74:])


def test_without_depth_c_is_scaled(runner, poison):
    device, algo = runner
    a, b = np.empty((3, 0), np.float32), np.empty((0, 5), np.float32)
    c = poison((3, 5))
    gemm(device, a, b, c, algo=algo)
    assert not c.any()
    c = np.full((3, 5), 2, np.float32)
    gemm(device, a, b, c, beta=0.25, algo=algo)
    assert (c == 0.5).all()


@pytest.mark.parametrize(("m", "n"), [(0, 4), (4, 0), (0, 0)])
def test_empty_result_launches_nothing(runner, m, n):
    device, algo = runner
    gemm(device, np.ones((m, 3), np.float32), np.ones((3, n), np.float32), np.empty((m, n), np.float32), algo=algo)


@pytest.mark.parametrize("order", ORDERS)
def test_large_tiles(rng, poison, order):
    """The 128 x 128 variant on a few tiles: gemm() itself takes it for many tiles only."""
    m, n, k = 131, 260, 27
    for trans_a, trans_b in TRANSPOSES:
        a, b = operands(rng, m, n, k, trans_a, trans_b)
        c = poison((m, n))
        SimtDevice(order=order).launch(
            "gemm", "gemm", tiles((tile_count(m, n, LARGE), 1, 1), (256, 1, 1)), a, b, c, m, n, k, a.shape[1],
            b.shape[1], n, trans_a, trans_b, 1.0, 0.0, True)
        close(c, reference(a, b, trans_a, trans_b), k)


def test_many_tiles_are_large_ones(monkeypatch):
    launched = []
    device = SimtDevice()
    monkeypatch.setattr(device, "launch", lambda *args: launched.append((args[2].count, args[-1])))
    for m, n in ((64, 64), (128 * LARGE_TILES, 128)):
        a, b, c = (np.empty(shape, np.float32) for shape in ((m, 0), (0, n), (m, n)))
        gemm(device, a, b, c, algo=TILED)
    assert launched == [(1, False), (LARGE_TILES, True)]


def test_equal_bytes_twice(runner, rng):
    device, algo = runner
    a, b = operands(rng, 70, 50, 300, False, True)
    c, d = np.empty((70, 50), np.float32), np.empty((70, 50), np.float32)
    gemm(device, a, b, c, trans_b=True, algo=algo)
    gemm(device, a, b, d, trans_b=True, algo=algo)
    assert c.tobytes() == d.tobytes()


def test_thread_order_changes_no_byte(rng):
    a, b = operands(rng, 70, 129, 33, False, False)
    results = []
    for order in ORDERS:
        c = np.empty((70, 129), np.float32)
        gemm(SimtDevice(order=order, seed=3), a, b, c, algo=TILED)
        results.append(c.tobytes())
    assert len(set(results)) == 1


def test_wrong_arguments_name_the_numbers(runner):
    device, algo = runner
    a, b, c = (np.ones(s, np.float32) for s in ((3, 4), (5, 6), (3, 6)))
    with pytest.raises(ValueError, match="k=4 and 5"):
        gemm(device, a, b, c, algo=algo)
    with pytest.raises(TypeError, match="float64"):
        gemm(device, a, b.astype(np.float64), c, algo=algo)
    with pytest.raises(ValueError, match="row-major"):
        gemm(device, np.ones((3, 10), np.float32)[:, ::2], b, c, algo=algo)
    with pytest.raises(ValueError, match="blas, tiled, got 'magic'"):
        gemm(device, a, b, c, algo="magic")


def test_included_text_is_put_in_place():
    """Compilers and caches see one text, and messages still name the line that a person edits."""
    text = source.read("gemm.cu")
    assert "#include" not in text and '#line 1 "tile.cuh"' in text
    own = (source.FOLDER / "gemm.cu").read_text().splitlines()
    line = own.index('#include "tile.cuh"') + 2
    after = text.split(f'#line {line} "gemm.cu"\n')[1]
    assert after.splitlines() == own[line - 1 :]


def test_tiles_need_barriers(fast):
    one = np.ones((1, 1), np.float32)
    with pytest.raises(RuntimeError, match="barriers"):
        gemm(fast, one, one, one.copy(), algo=TILED)
