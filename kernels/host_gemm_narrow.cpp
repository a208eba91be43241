// c(m,n) = alpha op(a)(m,k) op(b)(k,n) + beta c for n of 1 to 16: a is read once, at the speed of memory (dense layers).
// Rows of a: vectors run along k, lanes are summed at the end. Columns of a (transposed): vectors run along m.
// Sums run over k in blocks of at most NARROW_DEPTH / LANES or, for columns, in order; equal bytes for any thread count.
namespace {

constexpr int NARROW = 16;              // most columns of b
constexpr int GROUP = 8;                // columns of b that are summed at a time
constexpr i64 NARROW_DEPTH = 2048;      // of k at a time: the rows of one task stay in L2 for the second group
constexpr i64 NARROW_ROWS = 48;         // of c in one task
constexpr i64 NARROW_COLUMNS = 1024;    // the same, of a transposed a
constexpr int ABREAST = LANES > 8 ? 3 : 1;  // rows or vectors of a at a time: ABREAST * GROUP sums in registers

struct Narrow {
  i64 m, n, k;
  float alpha;
  const float* a;
  i64 lda;
  float beta;
  float* c;
  i64 ldc;

  void put(i64 i, i64 j, float sum) const {
    float& to = c[i * ldc + j];
    to = alpha * sum + (beta ? beta * to : 0);
  }
};

// sums(i) += the sum of the lanes of v[i]: a butterfly for LANES vectors at a time.
inline void sum_lanes(const vec* v, int count, float* sums) {
  for (int first = 0; first < count; first += LANES) {
    vec t[LANES];
    for (int i = 0; i < LANES; ++i) t[i] = first + i < count ? v[first + i] : vec{};
    for (int level = 0; 1 << level < LANES; ++level) {
      const ivec low = *(const ivec*)BUTTERFLY.low[level], high = *(const ivec*)BUTTERFLY.high[level];
      for (int i = 0; i < LANES; i += 2 << level) {
        const vec a = t[i], b = t[i + (1 << level)];
        t[i] = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
      }
    }
    for (int i = 0; i < LANES && first + i < count; ++i) sums[first + i] += t[0][i];
  }
}

// sums (R, N) += rows of a times rows of bt (N, ldb), both along k.
template <int N, int R>
void dot_rows(i64 k, const float* a, i64 lda, const float* bt, i64 ldb, float* sums) {
  vec v[R][N];
  for (int i = 0; i < R * N; ++i) v[i / N][i % N] = vec{};
  const auto step = [&](i64 e, const vec(&row)[R]) {
    for (int j = 0; j < N; ++j) {
      const vec b = load(bt + j * ldb + e);
      for (int r = 0; r < R; ++r) v[r][j] += row[r] * b;
    }
  };
  vec row[R];
  i64 e = 0;
  for (; e + LANES <= k; e += LANES) {
    for (int r = 0; r < R; ++r) row[r] = load(a + r * lda + e);
    step(e, row);
  }
  if (e < k) {
    for (int r = 0; r < R; ++r) row[r] = masked_load(a + r * lda + e, ALL_LANES >> (LANES - (k - e)), vec{});
    step(e, row);
  }
  vec all[R * N];
  for (int i = 0; i < R * N; ++i) all[i] = v[i / N][i % N];
  sum_lanes(all, R * N, sums);
}

// sums (N, NARROW_COLUMNS) += depth rows of a, V vectors of each, times depth rows of b (., NARROW).
template <int N, int V>
void add_rows(i64 depth, const float* a, i64 lda, const float* b, float* sums) {
  vec v[V][N];
  for (int i = 0; i < V; ++i)
    for (int j = 0; j < N; ++j) v[i][j] = load(sums + j * NARROW_COLUMNS + i * LANES);
  for (i64 k = 0; k < depth; ++k) {
    vec row[V];
    for (int i = 0; i < V; ++i) row[i] = load(a + k * lda + i * LANES);
    for (int j = 0; j < N; ++j)
      for (int i = 0; i < V; ++i) v[i][j] += row[i] * b[k * NARROW + j];
  }
  for (int i = 0; i < V; ++i)
    for (int j = 0; j < N; ++j) store(sums + j * NARROW_COLUMNS + i * LANES, v[i][j]);
}

// All rows of one task against n <= N columns of b; sums (GROUP, rows) in the layouts of the two above.
template <int N>
void dot_group(i64 n, i64 rows, i64 depth, const float* a, i64 lda, const float* bt, i64 ldb, float* sums) {
  if constexpr (N > 1)
    if (n < N) return dot_group<N - 1>(n, rows, depth, a, lda, bt, ldb, sums);
  i64 i = 0;
  for (; i + ABREAST <= rows; i += ABREAST) dot_rows<N, ABREAST>(depth, a + i * lda, lda, bt, ldb, sums + i * N);
  for (; i < rows; ++i) dot_rows<N, 1>(depth, a + i * lda, lda, bt, ldb, sums + i * N);
}

template <int N>
void add_group_rows(i64 n, i64 columns, i64 depth, const float* a, i64 lda, const float* b, float* sums) {
  if constexpr (N > 1)
    if (n < N) return add_group_rows<N - 1>(n, columns, depth, a, lda, b, sums);
  i64 i = 0;
  for (; i + ABREAST * LANES <= columns; i += ABREAST * LANES) add_rows<N, ABREAST>(depth, a + i, lda, b, sums + i);
  for (; i + LANES <= columns; i += LANES) add_rows<N, 1>(depth, a + i, lda, b, sums + i);
  for (; i < columns; ++i)
    for (i64 k = 0; k < depth; ++k)
      for (int j = 0; j < N; ++j) sums[j * NARROW_COLUMNS + i] += a[k * lda + i] * b[k * NARROW + j];
}

// Rows first.. of c; bt (n, ldb) is op(b) turned over, zeros behind k.
void narrow_rows(const Narrow& g, const float* bt, i64 ldb, i64 first) {
  const i64 rows = std::min(NARROW_ROWS, g.m - first);
  float sums[NARROW / GROUP][NARROW_ROWS * GROUP] = {};
  for (i64 k = 0; k < g.k; k += NARROW_DEPTH)
    for (i64 j = 0; j < g.n; j += GROUP)
      dot_group<GROUP>(std::min<i64>(GROUP, g.n - j), rows, std::min(NARROW_DEPTH, g.k - k), g.a + first * g.lda + k,
                       g.lda, bt + j * ldb + k, ldb, sums[j / GROUP]);
  for (i64 i = 0; i < rows; ++i)
    for (i64 j = 0; j < g.n; ++j) {
      const i64 width = std::min<i64>(GROUP, g.n - j / GROUP * GROUP);
      g.put(first + i, j, sums[j / GROUP][i * width + j % GROUP]);
    }
}

// The same from columns of a; b (k, NARROW).
void narrow_columns(const Narrow& g, const float* b, i64 first) {
  constexpr i64 AT_ONCE = 16;
  const i64 columns = std::min(NARROW_COLUMNS, g.m - first);
  float sums[NARROW * NARROW_COLUMNS];
  std::memset(sums, 0, g.n * NARROW_COLUMNS * sizeof(float));
  for (i64 k = 0; k < g.k; k += AT_ONCE)
    for (i64 j = 0; j < g.n; j += GROUP)
      add_group_rows<GROUP>(std::min<i64>(GROUP, g.n - j), columns, std::min(AT_ONCE, g.k - k), g.a + k * g.lda + first,
                            g.lda, b + k * NARROW + j, sums + j * NARROW_COLUMNS);
  for (i64 i = 0; i < columns; ++i)
    for (i64 j = 0; j < g.n; ++j) g.put(first + i, j, sums[j * NARROW_COLUMNS + i]);
}

void narrow(bool trans_a, bool trans_b, const Narrow& g, const float* b, i64 ldb, int threads, void* workspace) {
  float* packed = (float*)aligned(workspace);
  const i64 ld = round_up(g.k, LANES), step_k = trans_a ? NARROW : 1, step_n = trans_a ? 1 : ld;
  if (!trans_a) std::memset(packed, 0, ld * g.n * sizeof(float));
  for (i64 k = 0; k < g.k; ++k)
    for (i64 j = 0; j < g.n; ++j) packed[k * step_k + j * step_n] = trans_b ? b[j * ldb + k] : b[k * ldb + j];
  const i64 rows = trans_a ? NARROW_COLUMNS : NARROW_ROWS, tasks = ceil_div(g.m, rows);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (tasks > 1)
  for (i64 t = 0; t < tasks; ++t) {
    if (trans_a) narrow_columns(g, packed, t * rows);
    else narrow_rows(g, packed, ld, t * rows);
  }
}

inline i64 narrow_workspace(i64 k) { return round_up(k, LANES) * NARROW * sizeof(float) + LINE; }

}  // namespace
