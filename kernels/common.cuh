// Names that every kernel may use; this text stands before each *.cu, on both devices.
//
//   GRID_STRIDE_LOOP(i, n)         i = 0..n-1, independent items
//   ROW_LOOP(row, i, rows, cols)   the same over a rows x cols matrix; what depends on `row` alone is hoisted
//   RUN_LOOP(row, run, rows, cols, line)
//                                  the same, but a thread has a run of neighbouring items: one on CUDA, up to RUN on the
//                                  host, so that loops over taps or rows stay outside of those that vectorise; a run
//                                  breaks no line of `line` items that could be whole
//   EACH_LINE(n, p, run, P, Q)     where a row is made of planes of P lines of Q items: the lines that the run touches,
//                                  line p of plane n
//   EACH(i, run, lo, hi)           the items of the run in [lo, hi); what belongs to item i alone is kept in
//                                  local[i - run.begin] of an array local[RUN]
//   begin_run(out, run, local)     where to put the run's items of the matrix `out`; end_run(out, run, local) when they are
//                                  all there: the host writes a matrix larger than its caches past them
//   begin_part(out, past, local)   where to put a part of a matrix that is not one run, up to 2 * RUN items from `out` on, and
//                                  end_part(out, past, part, count) when they are all there; past = past_caches(items of
//                                  the matrix)
//   first_of(run, lo)              the first item of the run from lo on; items_of(run, lo, hi): how many lie in [lo, hi)
//   BLOCK_ROWS(row, rows)          one block works on one row at a time
//   BLOCK_COLUMNS(run, N)          one block works on a run of columns of a matrix at a time: one column on CUDA, up to COLUMNS
//                                  neighbours on the host, whose lines vectorise: BLOCK_STRIDE(k, K) EACH(n, run, 0, N)
//   BLOCK_STRIDE(i, n)             the threads of a block share the items of a row
//   WIDE                           before a kernel whose loops are long: the host compiler takes the widest vectors
//   SIMD_SUM(s) / SIMD_MAX(m)      before a BLOCK_STRIDE: s or m is a reduction (a hint for the host compiler)
//   block_sum(v), block_max(v)     reduce over the block; every thread gets the result
//
// On the host's fast mode (host_fast.h) a block is one contiguous range, blockDim is 1, and the reductions are the
// identity, so that the loop bodies vectorise. Kernels use these names and no bare __syncthreads; the tiled GEMM family
// (gemm.cu, conv.cu) is the exception.
typedef long long i64;

#ifdef __CUDACC_RTC__  // NVRTC has no math.h
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif

#ifndef SPRINT_FAST
#define GRID_STRIDE_LOOP(i, n)                                      \
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); \
       i += (i64)gridDim.x * blockDim.x)
#define ROW_LOOP(row, i, rows, cols)                                                                      \
  for (i64 flat_ = (i64)blockIdx.x * blockDim.x + threadIdx.x, total_ = (i64)(rows) * (cols); flat_ < total_; \
       flat_ += (i64)gridDim.x * blockDim.x)                                                              \
    if (const i64 row = flat_ / (cols), i = flat_ - row * (cols); true)
struct Run {
  i64 begin;
};
#define RUN 1
#define RUN_LOOP(row, run, rows, cols, line) \
  ROW_LOOP(row, run##_begin, rows, cols) if (const Run run{run##_begin}; true)
#define EACH_LINE(n, p, run, P, Q) if (const i64 line_ = run.begin / (Q), n = line_ / (P), p = line_ - n * (P); true)
#define EACH(i, run, lo, hi)                            \
  if (const i64 i = run.begin; i < (lo) || i >= (hi)) { \
  } else  // so that an else behind the statement is not taken for this if's
__device__ inline float* begin_run(float*, Run, float* local) { return local; }
__device__ inline void end_run(float* out, Run run, const float* local) { out[run.begin] = local[0]; }
__device__ inline bool past_caches(i64) { return false; }
__device__ inline float* begin_part(float*, bool, float* local) { return local; }
__device__ inline void end_part(float* out, bool, const float* part, i64 count) {
  for (i64 i = 0; i < count; ++i) out[i] = part[i];
}
__device__ inline i64 first_of(Run run, i64 lo) { return run.begin < lo ? lo : run.begin; }
__device__ inline i64 items_of(Run run, i64 lo, i64 hi) { return run.begin >= lo && run.begin < hi; }
#define BLOCK_ROWS(row, rows) for (i64 row = blockIdx.x; row < (rows); row += gridDim.x)
#define COLUMNS 1
#define BLOCK_COLUMNS(run, N) BLOCK_ROWS(run##_begin, N) if (const Run run{run##_begin}; true)
#define BLOCK_STRIDE(i, n) for (i64 i = threadIdx.x; i < (n); i += blockDim.x)
#define WIDE
#define SIMD_SUM(s)
#define SIMD_MAX(m)

// fmaxf drops NaN; a maximum over data must keep it.
__device__ inline float max_nan(float a, float b) { return a > b || a != a ? a : b; }

__device__ inline float warp_sum(float v) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
__device__ inline float warp_max(float v) {
  for (int o = 16; o > 0; o >>= 1) v = max_nan(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

// The last barrier lets `part` be used again at once by the next reduction.
__device__ inline float block_sum(float v) {
  __shared__ float part[32];
  v = warp_sum(v);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
  if (threadIdx.x < 32) v = warp_sum(v);
  if (threadIdx.x == 0) part[0] = v;
  __syncthreads();
  v = part[0];
  __syncthreads();
  return v;
}
__device__ inline float block_max(float v) {
  __shared__ float part[32];
  v = warp_max(v);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : -INFINITY;
  if (threadIdx.x < 32) v = warp_max(v);
  if (threadIdx.x == 0) part[0] = v;
  __syncthreads();
  v = part[0];
  __syncthreads();
  return v;
}
#endif

// a / b rounded up and kept within 0..most: how many steps of b, from 0 on, stay below a.
__device__ inline i64 steps_below(i64 a, i64 b, i64 most) {
  return a <= 0 ? 0 : a > (most - 1) * b ? most : (a - 1) / b + 1;
}
