// Matrix product c(m,n) = alpha op(a) op(b) + beta c by tiles in shared memory (tile.cuh); a and b each plain or
// transposed, any sizes, rows any number of elements apart.
#include "tile.cuh"

template <class T>
__device__ inline void gemm_tile(float* shared, Matrix a, Matrix b, float* c, i64 ldc, int k, float alpha, float beta) {
  const i64 m = a.rows, n = b.rows;
  const i64 tiles_down = ceil_div(m, T::M);  // neighbouring blocks share columns of b, the longer operand as a rule
  const i64 row0 = blockIdx.x % tiles_down * T::M, column0 = blockIdx.x / tiles_down * T::N;
  const Fetch at_a = fetch(a.step == 1), at_b = fetch(b.step == 1);
  Strip rows = strip(a, at_a, row0), columns = strip(b, at_b, column0);
  float sum[T::TM][T::TN] = {};
  multiply<T>(
      shared, sum, k, at_a, [&](float(&out)[T::A], int left) { load(rows, out, left); }, at_b,
      [&](float(&out)[T::B], int left) { load(columns, out, left); });
  float* corner = c + row0 * ldc + column0;
  if (beta == 0)  // c may hold anything, NaN too
    write<T>(sum, corner, ldc, m - row0, n - column0, [=](float s, int, const float*) { return alpha * s; });
  else
    write<T>(sum, corner, ldc, m - row0, n - column0,
             [=](float s, int, const float* to) { return alpha * s + beta * *to; });
}

// One block a tile of 128 x 128 (large) or 64 x 64. Rows of a, b, c lie lda, ldb, ldc elements apart.
extern "C" __global__ void __launch_bounds__(256, 2)
gemm(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, i64 m, i64 n, int k, i64 lda, i64 ldb,
     i64 ldc, int trans_a, int trans_b, float alpha, float beta, int large) {
  typedef Tile<128, 128, 8, 8> Large;
  typedef Tile<64, 64, 4, 4> Small;
  alignas(16) __shared__ float shared[Large::SHARED];
  const Matrix rows = trans_a ? Matrix{a, m, 1, lda} : Matrix{a, m, lda, 1};
  const Matrix columns = trans_b ? Matrix{b, n, ldb, 1} : Matrix{b, n, 1, ldb};
  if (large)
    gemm_tile<Large>(shared, rows, columns, c, ldc, k, alpha, beta);
  else
    gemm_tile<Small>(shared, rows, columns, c, ldc, k, alpha, beta);
}
