// Host, fast mode: one block is one contiguous range of the work, with one thread; blocks are spread over OpenMP threads.
#if defined(__AVX__)
#include <immintrin.h>
#endif

static thread_local unsigned sprint_block, sprint_grid;
static constexpr dim3 blockDim{1, 1, 1}, threadIdx{0, 0, 0};
#define blockIdx (dim3{sprint_block, 0, 0})
#define gridDim (dim3{sprint_grid, 1, 1})
#define __shared__ static thread_local
static inline void __syncthreads() {}

static inline long long range_begin(long long n, unsigned block, unsigned grid) { return n * block / grid; }

// The part of row `row` that lies in [flat, end).
struct RowSpan {
  long long row, begin, end;
};
static inline RowSpan row_span(long long flat, long long end, long long cols) {
  const long long row = flat / cols, begin = flat - row * cols;
  return {row, begin, min(begin + (end - flat), cols)};
}

// Copies past the caches: a normal store first reads the cache line that it will overwrite, which costs a copy half its
// speed. stream_end() makes what was written known to other threads; it is always false.
static inline void stream(float* to, const float* from, long long count) {
  long long i = 0;
#if defined(__AVX__)
  for (; i < count && (uintptr_t)(to + i) % 64; ++i) to[i] = from[i];
  for (; i + 16 <= count; i += 16) {
    _mm256_stream_ps(to + i, _mm256_load_ps(from + i));
    _mm256_stream_ps(to + i + 8, _mm256_load_ps(from + i + 8));
  }
#endif
  for (; i < count; ++i) to[i] = from[i];
}
static inline bool stream_end() {
#if defined(__AVX__)
  _mm_sfence();
#endif
  return false;
}

// The items are independent (common.cuh says so), hence ivdep: an output may be an input, in place, and still vectorise.
#define SPRINT_PRAGMA(text) _Pragma(#text)
#define INDEPENDENT SPRINT_PRAGMA(GCC ivdep)
#define GRID_STRIDE_LOOP(i, n)                                                \
  INDEPENDENT for (i64 i = range_begin((n), sprint_block, sprint_grid),       \
                   i##_end = range_begin((n), sprint_block + 1, sprint_grid); \
                   i < i##_end; ++i)
#define ROW_LOOP(row_, i, rows, cols)                                              \
  for (i64 total_ = (i64)(rows) * (cols), flat_ = range_begin(total_, sprint_block, sprint_grid), \
           end_ = range_begin(total_, sprint_block + 1, sprint_grid);              \
       flat_ < end_;)                                                              \
    if (RowSpan span_ = row_span(flat_, end_, (cols)); true)                       \
      if (const i64 row_ = span_.row; flat_ += span_.end - span_.begin, true)      \
        INDEPENDENT for (i64 i = span_.begin; i < span_.end; ++i)
#define BLOCK_ROWS(row, rows)                                                      \
  for (i64 row = range_begin((rows), sprint_block, sprint_grid),                   \
           row##_end = range_begin((rows), sprint_block + 1, sprint_grid);         \
       row < row##_end; ++row)
#define BLOCK_STRIDE(i, n) for (i64 i = 0; i < (n); ++i)
#if defined(__AVX512F__) && !defined(__clang__)
#define WIDE __attribute__((target("prefer-vector-width=512")))
#else
#define WIDE
#endif
#define SIMD_SUM(s) SPRINT_PRAGMA(omp simd reduction(+ : s))
#define SIMD_MAX(m) SPRINT_PRAGMA(omp simd reduction(max : m))

// exp of a float in vectors, which the C library's is not: e^v = 2^k e^r with |r| <= ln(2)/2, seven terms of
// the series of e^r - 1 (what is left out is 6e-9), and 2^k in two factors, for results that are subnormal or infinite.
static inline float power_of_2(int k) {
  const int bits = (k + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return power;
}
static inline float exp_in_vectors(float v) {
  v = v > 89.f ? 89.f : v < -104.f ? -104.f : v;  // NaN stays
  const float round = 12582912.f, k = (v * 1.44269504f + round) - round;
  const float r = (v - k * 0.693359375f) + k * 2.12194440e-4f;
  float e = 1.9841270e-4f;
  e = e * r + 1.3888889e-3f;
  e = e * r + 8.3333333e-3f;
  e = e * r + 4.1666667e-2f;
  e = e * r + 1.6666667e-1f;
  e = e * r + 0.5f;
  e = (e * r * r + r) + 1.f;
  const int whole = v == v ? (int)k : 0, half = whole >> 1;
  return e * power_of_2(half) * power_of_2(whole - half);
}
#define expf exp_in_vectors

static inline float max_nan(float a, float b) { return a > b || a != a ? a : b; }
static inline float block_sum(float v) { return v; }
static inline float block_max(float v) { return v; }

// ---- runs ------------------------------------------------------------------------------------------------------------
#define RUN 768  // not 1024: local arrays a page apart would get into each other's way
#define RUN_LOOP(row_, run, rows, cols, line)                                                     \
  for (i64 total_ = (i64)(rows) * (cols), flat_ = range_begin(total_, sprint_block, sprint_grid), \
           end_ = range_begin(total_, sprint_block + 1, sprint_grid);                             \
       flat_ < end_ || stream_end();)                                                             \
    if (const Run run = next_run(flat_, end_, (cols), (line), total_); true)                      \
      if (const i64 row_ = run.row; flat_ += run.end - run.begin, true)
#define COLUMNS 128  // all classes of a run should stay in the second-level cache
#define BLOCK_COLUMNS(run, N)                                                                                            \
  for (i64 flat_ = range_begin((N), sprint_block, sprint_grid), end_ = range_begin((N), sprint_block + 1, sprint_grid); \
       flat_ < end_;)                                                                                                    \
    if (const Run run{0, flat_, min(flat_ + COLUMNS, end_), false}; flat_ = run.end, true)
#define EACH_LINE(n, p, run, P, Q)                                                               \
  for (i64 line_ = run.begin / (Q), n = line_ / (P), p = line_ - n * (P); line_ * (Q) < run.end; \
       ++line_, p = p + 1 < (P) ? p + 1 : (++n, 0))
#define EACH(i, run, lo, hi) \
  INDEPENDENT for (i64 i = max((i64)(lo), run.begin), i##_end = min((i64)(hi), run.end); i < i##_end; ++i)

// A result beyond CACHE_BYTES (sysconf's answer is not to be trusted) would push everything out of the caches, and be gone
// itself before it is read: its runs go past them.
static constexpr long long CACHE_BYTES = 32 << 20;
struct Run {
  long long row, begin, end;
  bool past_caches;
};
static inline bool past_caches(long long items) { return items * (long long)sizeof(float) > CACHE_BYTES; }
static inline long long first_of(const Run& run, long long lo) { return max(lo, run.begin); }
static inline long long items_of(const Run& run, long long lo, long long hi) {
  return max(min(hi, run.end) - max(lo, run.begin), 0LL);
}
static inline Run next_run(long long flat, long long end, long long cols, long long line, long long total) {
  const RowSpan span = row_span(flat, end, cols);
  const long long most = line > RUN ? span.begin + RUN : (span.begin / line + RUN / line) * line;
  return {span.row, span.begin, min(span.end, most), past_caches(total)};
}

// A run on its way past the caches lies in one page, and in a cache line as it will lie there: anything else is slower.
alignas(4096) static thread_local float stage[2 * RUN + 16];
static inline float* stage_of(const float* to) { return stage + (uintptr_t)to % 64 / sizeof(float); }
static inline float* begin_run(float* out, const Run& run, float*) {
  return run.past_caches ? stage_of(out + run.begin) : out + run.begin;
}
static inline void end_run(float* out, const Run& run, const float*) {
  if (run.past_caches) stream(out + run.begin, stage_of(out + run.begin), run.end - run.begin);
}
static inline float* begin_part(float* out, bool past, float*) { return past ? stage_of(out) : out; }
static inline void end_part(float* out, bool past, const float* part, long long count) {
  if (past) stream(out, part, count);
}
