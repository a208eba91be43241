// Host, fast mode: one block is one contiguous range of the work, with one thread; blocks are spread over OpenMP threads.
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

// The items are independent (common.cuh says so), hence ivdep: an output may be an input, in place, and still vectorise.
#define SPRINT_PRAGMA(text) _Pragma(#text)
#define INDEPENDENT SPRINT_PRAGMA(GCC ivdep)
#define GRID_STRIDE_LOOP(i, n)                                          \
  INDEPENDENT for (i64 i = range_begin((n), sprint_block, sprint_grid), \
                   i##_end = range_begin((n), sprint_block + 1, sprint_grid); \
                   i < i##_end; ++i)
#define ROW_LOOP(row_, i, rows, cols)                                              \
  for (i64 total_ = (i64)(rows) * (cols), flat_ = range_begin(total_, sprint_block, sprint_grid), \
           end_ = range_begin(total_, sprint_block + 1, sprint_grid);              \
       flat_ < end_;)                                                              \
    if (RowSpan span_ = row_span(flat_, end_, (cols)); true)                       \
      if (const i64 row_ = span_.row; flat_ += span_.end - span_.begin, true)      \
        INDEPENDENT for (i64 i = span_.begin; i < span_.end; ++i)
#define RUN 1024
#define RUN_LOOP(row_, run, rows, cols)                                                           \
  for (i64 total_ = (i64)(rows) * (cols), flat_ = range_begin(total_, sprint_block, sprint_grid), \
           end_ = range_begin(total_, sprint_block + 1, sprint_grid);                             \
       flat_ < end_;)                                                                             \
    if (const RowSpan run = row_span(flat_, min(end_, flat_ + RUN), (cols)); true)                \
      if (const i64 row_ = run.row; flat_ += run.end - run.begin, true)
#define EACH_LINE(line, run, length) for (i64 line = run.begin / (length); line * (length) < run.end; ++line)
#define EACH(i, run, lo, hi) \
  INDEPENDENT for (i64 i = max((i64)(lo), run.begin), i##_end = min((i64)(hi), run.end); i < i##_end; ++i)
#define BLOCK_ROWS(row, rows)                                                      \
  for (i64 row = range_begin((rows), sprint_block, sprint_grid),                   \
           row##_end = range_begin((rows), sprint_block + 1, sprint_grid);         \
       row < row##_end; ++row)
#define BLOCK_STRIDE(i, n) for (i64 i = 0; i < (n); ++i)
#define SIMD_SUM(s) SPRINT_PRAGMA(omp simd reduction(+ : s))
#define SIMD_MAX(m) SPRINT_PRAGMA(omp simd reduction(max : m))

static inline float max_nan(float a, float b) { return a > b || a != a ? a : b; }
static inline float block_sum(float v) { return v; }
static inline float block_max(float v) { return v; }
