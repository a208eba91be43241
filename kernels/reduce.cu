// Sums and maxima of the rows and the columns of x(M,J). A NaN anywhere makes the result NaN.
// Sums are collected in double: a float32 sum of 10^7 numbers has few digits left, and memory is slower than the addition.

extern "C" __global__ void row_sum(const float* __restrict__ x, float* __restrict__ out, i64 M, i64 J) {
  BLOCK_ROWS(m, M) {
    const float* line = x + m * J;
    double total = 0;
    SIMD_SUM(total)
    BLOCK_STRIDE(j, J) total += line[j];
    const float sum = block_sum((float)total);
    if (threadIdx.x == 0) out[m] = sum;
  }
}

#define CHUNK 2048

// The hint SIMD_MAX knows no NaN: they are counted while the chunk is still in the cache.
extern "C" __global__ void row_max(const float* __restrict__ x, float* __restrict__ out, i64 M, i64 J) {
  BLOCK_ROWS(m, M) {
    float most = -INFINITY, nans = 0.f;
    for (i64 first = 0; first < J; first += CHUNK) {
      const float* chunk = x + m * J + first;
      const i64 count = min((i64)CHUNK, J - first);
      SIMD_MAX(most)
      BLOCK_STRIDE(i, count) most = chunk[i] > most ? chunk[i] : most;
      SIMD_SUM(nans)
      BLOCK_STRIDE(i, count) nans += chunk[i] != chunk[i] ? 1.f : 0.f;
    }
    most = block_max(nans > 0.f ? NAN : most);
    if (threadIdx.x == 0) out[m] = most;
  }
}

// Columns: neighbours walk down side by side, line by line.
extern "C" __global__ void column_sum(const float* __restrict__ x, float* __restrict__ out, i64 M, i64 J) {
  RUN_LOOP(all, run, 1, J, 16) {
    double total[RUN];
    EACH(j, run, 0, J) total[j - run.begin] = 0;
    for (i64 m = 0; m < M; ++m) EACH(j, run, 0, J) total[j - run.begin] += x[m * J + j];
    EACH(j, run, 0, J) out[j] = (float)total[j - run.begin];
  }
}

extern "C" __global__ void column_max(const float* __restrict__ x, float* __restrict__ out, i64 M, i64 J) {
  RUN_LOOP(all, run, 1, J, 16) {
    float most[RUN];
    EACH(j, run, 0, J) most[j - run.begin] = -INFINITY;
    for (i64 m = 0; m < M; ++m) EACH(j, run, 0, J) most[j - run.begin] = max_nan(x[m * J + j], most[j - run.begin]);
    EACH(j, run, 0, J) out[j] = most[j - run.begin];
  }
}
