"""simt mode: CUDA semantics on the host, and the faults that it must find."""

from __future__ import annotations

import numpy as np
import pytest
from sprint.kernels.device import elements, rows, tiles
from sprint.kernels.simt import ORDERS, SimtDevice

# Reverses 64 elements by way of shared memory; BARRIER is where a kernel may have forgotten one.
REVERSE = """
extern "C" __global__ void reverse(const float* x, float* y, i64 n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  BARRIER
  y[threadIdx.x] = tile[n - 1 - threadIdx.x];
}
"""
# Every thread writes one element, shifted by `shift` elements.
SHIFTED = """
extern "C" __global__ void shifted(float* y, i64 n, i64 shift) { GRID_STRIDE_LOOP(i, n) y[i + shift] = 1.f; }
extern "C" __global__ void peek(const float* x, float* y, i64 n, i64 shift) {
  GRID_STRIDE_LOOP(i, n) y[i] = x[i + shift];
}
extern "C" __global__ void cheat(const float* x, float* y, i64 n) {
  GRID_STRIDE_LOOP(i, n) ((float*)x)[i] = y[i];
}
extern "C" __global__ void twice(const float* x, float* y, i64 n) {
  GRID_STRIDE_LOOP(i, n) y[i] = 2.f * x[i];
}
"""
WARPS = """
extern "C" __global__ void lanes(int* xor_, int* down, int* up, int* from, unsigned* votes, i64 n) {
  const int v = 100 * (threadIdx.x / 32) + threadIdx.x % 32;
  xor_[threadIdx.x] = __shfl_xor_sync(0xffffffffu, v, 5);
  down[threadIdx.x] = __shfl_down_sync(0xffffffffu, v, 3);
  up[threadIdx.x] = __shfl_up_sync(0xffffffffu, v, 3);
  from[threadIdx.x] = __shfl_sync(0xffffffffu, v, 7);
  votes[threadIdx.x] = __ballot_sync(0xffffffffu, threadIdx.x % 3 == 0);
}
extern "C" __global__ void halves(int* out, i64 n) {
  int v = threadIdx.x % 32;
  if (v < 16) v += __shfl_xor_sync(0x0000ffffu, v, 1);
  v += __shfl_xor_sync(0xffffffffu, v, 16);
  __syncwarp();
  out[threadIdx.x] = v;
}
extern "C" __global__ void missing_lanes(int* out, i64 n) {
  if (threadIdx.x % 32 < 20) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
  __syncthreads();
}
"""
BARRIERS = """
extern "C" __global__ void fresh(float* y, i64 n) {
  __shared__ float once[2];
  if (threadIdx.x == 0) y[blockIdx.x] = once[1];
  __syncthreads();
  once[threadIdx.x & 1] = 1.f;
}
extern "C" __global__ void some(float* y, i64 n) {
  if (threadIdx.x >= 32) return;
  __syncthreads();
  y[threadIdx.x] = 0.f;
}
extern "C" __global__ void sums(const float* x, float* sum, float* max, i64 rows_, i64 n) {
  BLOCK_ROWS(row, rows_) {
    float s = 0.f, m = -INFINITY;
    BLOCK_STRIDE(i, n) s += x[row * n + i], m = max_nan(m, x[row * n + i]);
    s = block_sum(s);
    m = block_max(m);
    if (threadIdx.x == 0) sum[row] = s, max[row] = m;
  }
}
extern "C" __global__ void where(int* x, int* y, int* z, int* total) {
  const i64 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const i64 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const i64 i = block * blockDim.x * blockDim.y * blockDim.z + thread;
  x[i] = threadIdx.x, y[i] = threadIdx.y, z[i] = threadIdx.z;
  atomicAdd(total, 1);
}
"""


def simt(text, order="forward", block=64, seed=1):
    return SimtDevice(block=block, order=order, seed=seed, text=text)


def run_reverse(text, order):
    x, y = np.arange(64, dtype=np.float32), np.full(64, np.nan, np.float32)
    simt(text, order).launch("planted", "reverse", elements(64), x, y, 64)
    return np.array_equal(y, x[::-1])


def test_missing_barrier_is_seen_in_some_order():
    whole, faulty = REVERSE.replace("BARRIER", "__syncthreads();"), REVERSE.replace("BARRIER", "")
    assert all(run_reverse(whole, order) for order in ORDERS)
    assert not all(run_reverse(faulty, order) for order in ORDERS)


@pytest.mark.parametrize("shift, fault", [(1, "past the end of y"), (-1, "before the start"), (9, "past")])
@pytest.mark.parametrize("order", ORDERS)
def test_write_outside_an_array_is_found(shift, fault, order):
    with pytest.raises(RuntimeError, match=f"shifted: .*{fault}"):
        simt(SHIFTED, order).launch("planted", "shifted", elements(37), np.zeros(37, np.float32), 37, shift)


@pytest.mark.parametrize("shift", [1, -1])
def test_read_outside_an_array_gives_nan(shift):
    y = np.zeros(37, np.float32)
    simt(SHIFTED).launch("planted", "peek", elements(37), np.zeros(37, np.float32), y, 37, shift)
    assert np.isnan(y).sum() == 1


def test_write_to_a_constant_is_found_and_undone():
    x, y = np.arange(5, dtype=np.float32), np.ones(5, np.float32)
    with pytest.raises(RuntimeError, match=r"cheat: .*write to the constant x"):
        simt(SHIFTED).launch("planted", "cheat", elements(5), x, y, 5)
    assert np.array_equal(x, np.arange(5))


def test_one_array_twice_stays_one_array():
    x = np.arange(5, dtype=np.float32)
    simt(SHIFTED).launch("planted", "twice", elements(5), x, x, 5)
    assert np.array_equal(x, 2 * np.arange(5))


def test_partly_overlapping_arrays_are_refused():
    x = np.arange(9, dtype=np.float32)
    with pytest.raises(RuntimeError, match="twice: expected arrays apart or equal, got y inside x"):
        simt(SHIFTED).launch("planted", "twice", elements(5), x[:5], x[2:7], 5)
    simt(SHIFTED).launch("planted", "twice", elements(4), x[:4], x[4:8], 4)
    assert np.array_equal(x[4:8], 2 * np.arange(4))


def test_one_array_twice_is_refused_where_a_parameter_is_restrict():
    text = SHIFTED.replace("const float* x, float* y, i64 n)", "const float* __restrict__ x, float* y, i64 n)")
    x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    with pytest.raises(RuntimeError, match="twice: expected arrays apart, for one is __restrict__, got x = y"):
        simt(text).launch("planted", "twice", elements(5), x, x, 5)
    simt(text).launch("planted", "twice", elements(5), x, y, 5)
    assert np.array_equal(y, 2 * x)


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_and_ballot(order):
    n = 96
    out = [np.full(n, -1, np.int32) for _ in range(4)]
    votes = np.zeros(n, np.uint32)
    simt(WARPS, order, block=n).launch("planted", "lanes", elements(n), *out, votes, n)
    warp, lane = np.arange(n) // 32, np.arange(n) % 32
    down, up = np.where(lane < 29, lane + 3, lane), np.where(lane >= 3, lane - 3, lane)
    expected = [lane ^ 5, down, up, np.full(n, 7)]
    for got, lanes in zip(out, expected, strict=True):
        assert np.array_equal(got, 100 * warp + lanes)
    bits = [sum(1 << i for i in range(32) if (32 * w + i) % 3 == 0) for w in range(3)]
    assert np.array_equal(votes, np.array(bits, np.uint32)[warp])


@pytest.mark.parametrize("order", ORDERS)
def test_part_of_a_warp_may_shuffle_alone(order):
    out = np.zeros(64, np.int32)
    simt(WARPS, order).launch("planted", "halves", elements(64), out, 64)
    lane = np.arange(32)
    first = np.where(lane < 16, lane + (lane ^ 1), lane)
    assert np.array_equal(out, np.tile(first + first[lane ^ 16], 2))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("text, kernel, fault", [
    (BARRIERS, "some", "threads that ended before a barrier"),
    (WARPS, "missing_lanes", "threads that wait for ever"),
])
def test_divergence_is_reported_and_the_next_launch_works(text, kernel, fault, order):
    device = simt(text, order)
    argument = np.zeros(64, np.float32 if kernel == "some" else np.int32)
    with pytest.raises(RuntimeError, match=f"{kernel}: .*{fault}"):
        device.launch("planted", kernel, elements(64), argument, 64)
    assert run_reverse(REVERSE.replace("BARRIER", "__syncthreads();"), order)


def test_shared_memory_is_nan_at_the_start_of_every_block():
    y = np.zeros(3, np.float32)
    simt(BARRIERS).launch("planted", "fresh", elements(3 * 64), y, 3)
    assert np.isnan(y).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("block", [32, 128, 256])
@pytest.mark.parametrize("n", [1, 31, 300])
def test_block_reductions(block, order, n, rng, poison):
    x = rng.normal(-4, 1, (5, n)).astype(np.float32)
    x[3, n // 2] = np.nan
    total, most = poison(5), poison(5)
    simt(BARRIERS, order, block).launch("planted", "sums", rows(5), x, total, most, 5, n)
    np.testing.assert_allclose(total, x.astype(np.float64).sum(1), rtol=1e-5)
    np.testing.assert_array_equal(most, x.max(1))


@pytest.mark.parametrize("order", ORDERS)
def test_grids_and_blocks_of_three_dimensions(order):
    grid, block = (2, 3, 2), (4, 2, 3)
    n = 12 * 24
    x, y, z = (np.full(n, -1, np.int32) for _ in range(3))
    total = np.zeros(1, np.int32)
    simt(BARRIERS, order).launch("planted", "where", tiles(grid, block), x, y, z, total)
    thread = np.arange(n) % 24
    assert total[0] == n
    for got, expected in ((x, thread % 4), (y, thread // 4 % 2), (z, thread // 8)):
        assert np.array_equal(got, expected)


def test_shuffled_order_follows_the_seed():
    def result(seed):
        y = np.zeros(64, np.float32)
        device = simt(REVERSE.replace("BARRIER", ""), "shuffle", seed=seed)
        device.launch("planted", "reverse", elements(64), np.arange(64, dtype=np.float32), y, 64)
        return y.tobytes()

    assert result(1) == result(1) != result(2)


def test_unknown_order_is_refused():
    with pytest.raises(ValueError, match="order of forward, reverse, shuffle, got 'random'"):
        SimtDevice(order="random")
