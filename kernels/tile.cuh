// One tile of a matrix product, as every kernel of gemm.cu and conv.cu makes it.
//
// A block of 256 threads makes an M x N tile of c = a b. It walks along the depth in slabs of 8: while the slab in shared
// memory is multiplied, the next one is on its way from global memory into registers, and two buffers make one barrier a
// slab enough. A thread owns TM x TN sums in groups of 4 x 4, so that it reads shared memory four floats at a time; the
// lanes of a warp stand 4 x 8, which keeps those reads free of bank conflicts.
//
// What a and b are (a matrix, its transpose, columns of an image that exist nowhere) is the loaders' business: a loader
// fills a thread's part of the next slab and moves on.
constexpr int THREADS = 256, DEPTH = 8, LANES = 32;
constexpr int PAD = 4;  // floats behind each row of a slab: a fetch along the depth then hits 32 different banks

template <int M_, int N_, int TM_, int TN_>
struct Tile {
  static constexpr int M = M_, N = N_, TM = TM_, TN = TN_;
  static constexpr int A = M * DEPTH / THREADS, B = N * DEPTH / THREADS;  // elements of a slab that a thread fetches
  static constexpr int SHARED = 2 * DEPTH * (M + PAD + N + PAD);          // floats
  static_assert(M / TM * (N / TN) == THREADS && THREADS == DEPTH * LANES, "one thread for each TM x TN sums");
};

__device__ inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// Which part of a slab a thread fetches: the rows of a (or columns of b) row, row + 32, row + 64, ... at one depth k.
// Neighbouring lanes follow the memory: along the depth, or across it.
struct Fetch {
  int row, k;
};
__device__ inline Fetch fetch(bool along_depth) {
  const int t = threadIdx.x;
  return along_depth ? Fetch{t / DEPTH, t % DEPTH} : Fetch{t % LANES, t / LANES};
}

// Where a thread's sums stand in the tile: sum[i][j] is at tile_row(i), tile_column(j).
template <class T>
__device__ inline int tile_row(int i) {
  constexpr int WARPS_ACROSS = T::N / T::TN / 8;
  const int y = threadIdx.x / LANES / WARPS_ACROSS * 4 + threadIdx.x % LANES / 8;
  return i / 4 * (4 * T::M / T::TM) + y * 4 + i % 4;
}
template <class T>
__device__ inline int tile_column(int j) {
  constexpr int WARPS_ACROSS = T::N / T::TN / 8;
  const int x = threadIdx.x / LANES % WARPS_ACROSS * 8 + threadIdx.x % 8;
  return j / 4 * (4 * T::N / T::TN) + x * 4 + j % 4;
}

template <int ROWS, int COUNT>
__device__ inline void put(float* slab, Fetch at, const float (&value)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) slab[at.k * (ROWS + PAD) + at.row + i * LANES] = value[i];
}

template <class T>
__device__ inline void multiply_slab(const float* a, const float* b, float (&sum)[T::TM][T::TN]) {
  float row[T::TM], column[T::TN];
#pragma unroll
  for (int k = 0; k < DEPTH; ++k) {
#pragma unroll
    for (int i = 0; i < T::TM; ++i) row[i] = a[k * (T::M + PAD) + tile_row<T>(i)];
#pragma unroll
    for (int j = 0; j < T::TN; ++j) column[j] = b[k * (T::N + PAD) + tile_column<T>(j)];
#pragma unroll
    for (int i = 0; i < T::TM; ++i)
#pragma unroll
      for (int j = 0; j < T::TN; ++j) sum[i][j] += row[i] * column[j];
  }
}

// sum += the product of all slabs of `depth`. `shared` holds T::SHARED floats. load_a(out, left) and load_b fetch what at_a
// and at_b say of the next slab, of which `left` remain: zero where k >= left.
template <class T, class LoadA, class LoadB>
__device__ inline void multiply(float* shared, float (&sum)[T::TM][T::TN], int depth, Fetch at_a, LoadA load_a, Fetch at_b,
                                LoadB load_b) {
  constexpr int SLAB_A = DEPTH * (T::M + PAD), SLAB_B = DEPTH * (T::N + PAD);
  float *const a = shared, *const b = shared + 2 * SLAB_A;
  float next_a[T::A], next_b[T::B];
  for (int left = depth, current = 1; left > -DEPTH; left -= DEPTH, current ^= 1) {
    if (left > 0) load_a(next_a, left), load_b(next_b, left);
    if (left != depth) multiply_slab<T>(a + current * SLAB_A, b + current * SLAB_B, sum);
    if (left > 0) put<T::M>(a + (current ^ 1) * SLAB_A, at_a, next_a), put<T::N>(b + (current ^ 1) * SLAB_B, at_b, next_b);
    __syncthreads();
  }
}

// An operand that lies in memory: element k of row r (of a; column r of b) is data[r * row_step + k * step].
struct Matrix {
  const float* data;
  i64 rows, row_step, step;
};

// A thread's part of it, slab after slab.
struct Strip {
  const float* next;  // its first element of the next slab
  i64 row_step, step;
  int rows;  // that exist from there on
  int k;
};
__device__ inline Strip strip(Matrix from, Fetch at, i64 row0) {
  const i64 row = row0 + at.row;
  return {from.data + row * from.row_step + at.k * from.step, from.row_step, from.step,
          (int)min(from.rows - row, (i64)1 << 30), at.k};
}
template <int COUNT>
__device__ inline void load(Strip& from, float (&out)[COUNT], int left) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
    out[i] = from.k < left && i * LANES < from.rows ? from.next[i * LANES * from.row_step] : 0.f;
  from.next += DEPTH * from.step;
}

// Write the part rows x columns of the tile that exists; `corner` is where its first element goes, rows lie ldc apart.
// value(sum[i][j], i, to) is what *to becomes.
struct alignas(16) Four {
  float x, y, z, w;
};
template <class T, class Value>
__device__ inline void write(const float (&sum)[T::TM][T::TN], float* corner, i64 ldc, i64 rows, i64 columns, Value value) {
  const bool fours = ldc % 4 == 0 && (unsigned long long)corner % sizeof(Four) == 0;
#pragma unroll
  for (int i = 0; i < T::TM; ++i) {
    const int row = tile_row<T>(i);
    if (row >= rows) continue;
    float* line = corner + row * ldc;
#pragma unroll
    for (int j = 0; j < T::TN; j += 4) {
      const int column = tile_column<T>(j);
      float* to = line + column;
      if (fours && column + 4 <= columns) {
        const Four four = {value(sum[i][j], i, to), value(sum[i][j + 1], i, to + 1),
                           value(sum[i][j + 2], i, to + 2), value(sum[i][j + 3], i, to + 3)};
        ((Four*)line)[column / 4] = four;
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (column + e < columns) to[e] = value(sum[i][j + e], i, to + e);
      }
    }
  }
}
