// Gradient of a convolution to its filters: dw = dy * col(x)^T, and to its bias: db = sum of dy over the columns.
// Threads form a grid: `shares` of the columns times `parts` of C*R*S. Each turns its columns of dy over into panels
// (columns, K), copies rows of the column matrix beside them and adds their product to its dw^T (C*R*S, K); the shares
// are then added in order and turned over. Sums run over columns in blocks of at most KC:
// |error| <= (KC + N*P*Q/KC) * 2^-24 * |dy| |x|; equal bytes every run with one thread count.
namespace {

// The split of `threads` into shares of `columns` and parts of `tiles` that leaves the busiest thread the least to do, in
// vector operations: a column costs rows * width of them for each tile and `turn` once; `floats` are added a share.
void choose_grid(i64 threads, i64 columns, i64 tiles, i64 rows, double turn, i64 floats, i64 width, i64& shares, i64& parts) {
  double least = 0;
  for (i64 candidate = 1; candidate <= threads; ++candidate) {
    if (threads % candidate) continue;
    const double mine = std::max<double>((double)columns / candidate, LANES);
    const double multiply = (double)ceil_div(tiles, threads / candidate) * rows * mine * width;
    const double add = candidate > 1 ? floats * (2 + 2.0 * candidate) / threads : 0, all = multiply + turn * mine + add;
    if (candidate == 1 || all < least) least = all, shares = candidate, parts = threads / candidate;
  }
}

struct FilterBlocks {
  const Conv& g;
  i64 ldk, tile_rows, tiles, shares, parts, share, depth;

  FilterBlocks(const Conv& conv, i64 threads) : g(conv) {
    ldk = round_up(g.K, NR);
    tile_rows = even_split(g.crs, MR);
    tiles = ceil_div(g.crs, tile_rows);
    choose_grid(threads, g.columns, tiles, tile_rows, 6.0 * ldk / LANES, g.crs * ldk / LANES, ldk / LANES, shares, parts);
    share = round_up(ceil_div(g.columns, shares), LANES);
    const i64 most = std::min<i64>(KC, std::max<i64>(128, L2_FLOATS / ldk));
    depth = round_up(even_split(share, most), LANES);
  }

  i64 partial_floats() const { return g.crs * ldk; }
};

struct FilterScratch {
  float *a, *b, *rows;
  Plans plans;
  FilterScratch(Arena& arena, const FilterBlocks& f) : plans(arena, f.g, f.depth) {
    a = arena.take<float>(MR * LDA);
    b = arena.take<float>(f.ldk * f.depth);
    rows = arena.take<float>(LANES * (LDA + 2 * f.g.pool));
  }
};

// Sums that the threads leave for each other.
struct FilterShared {
  float *dw, *db;  // (shares, C*R*S, ldk), (shares, ldk)
  FilterShared(Arena& arena, const FilterBlocks& f) {
    dw = arena.take<float>(f.shares * f.partial_floats());
    db = arena.take<float>(f.shares * f.ldk);
  }
};

// `columns` columns of dy from `first` on, turned over into panels (columns, NR).
void turn_gradient(const FilterBlocks& f, const Gradient& dy, const FilterScratch& s, i64 first, i64 columns) {
  const Conv& g = f.g;
  const i64 ld = LDA + 2 * g.pool;
  for (i64 k = 0; k < g.K; k += LANES) {
    const i64 rows = std::min<i64>(LANES, g.K - k);
    float* to = s.b + k / NR * NR * columns + k % NR;
    const float* from = dy.row(g, k, first, columns, s.rows);
    for (i64 i = 1; i < rows; ++i) dy.row(g, k + i, first, columns, s.rows + i * ld);
    transpose(from, from == s.rows ? ld : g.columns, rows, columns, to, NR);
  }
}

void add_bias_gradient(i64 ldk, const float* panels, i64 columns, float* db) {
  for (i64 k = 0; k < ldk; k += LANES) {
    const float* from = panels + k / NR * NR * columns + k % NR;
    vec sum[4] = {};
    for (i64 j = 0; j < columns; ++j) sum[j % 4] += load(from + j * NR);
    store(db + k, load(db + k) + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
  }
}

void finish_bias_gradient(i64 shares, i64 ldk, i64 K, const float* partial, float* db) {
  for (i64 k = 0; k < K; ++k) {
    db[k] = 0;
    for (i64 share = 0; share < shares; ++share) db[k] += partial[share * ldk + k];
  }
}

// Product of one block of columns, added to rows first..last-1 of this share's dw^T.
void multiply_columns(const FilterBlocks& f, const FilterScratch& s, const float* x, i64 first, i64 last, i64 columns,
                      bool add, float* dw) {
  for (i64 i = first; i < last; i += f.tile_rows) {
    const int rows = (int)std::min(f.tile_rows, last - i);
    i64 offsets[MR];
    find_rows(f.g, s.plans, i, rows, offsets);
    for (i64 v = 0; v * LANES < columns; ++v)
      pack_vector(f.g, s.plans, v, x, offsets, i, rows, s.a + v * LANES, LDA);
    for (i64 k = 0; k < f.g.K; k += NR) {
      float* c = dw + i * f.ldk + k;
      const Target target{c, f.ldk, (int)round_up(std::min<i64>(NR, f.g.K - k), LANES), add ? c : nullptr, f.ldk};
      RowTiles::run(rows, columns, s.a, s.b + k * columns, target);
    }
  }
}

void filter_task(const FilterBlocks& f, const Gradient& dy, const float* x, bool bias, const FilterShared& shared,
                 const FilterScratch& scratch, i64 share, i64 part) {
  FilterScratch s = scratch;
  const i64 begin = std::min(f.g.columns, share * f.share), end = std::min(f.g.columns, begin + f.share);
  const i64 first = part * f.tiles / f.parts * f.tile_rows;
  const i64 last = std::min(f.g.crs, (part + 1) * f.tiles / f.parts * f.tile_rows);
  float *dw = shared.dw + share * f.partial_floats(), *db = shared.db + share * f.ldk;
  if (f.ldk > f.g.K) std::memset(s.b, 0, f.ldk * f.depth * sizeof(float));  // lanes behind K stay finite
  if (part == 0) std::memset(db, 0, f.ldk * sizeof(float));
  if (begin == end) std::memset(dw + first * f.ldk, 0, std::max<i64>(0, last - first) * f.ldk * sizeof(float));
  for (i64 j = begin; j < end; j += f.depth) {
    const i64 columns = std::min(f.depth, end - j);
    turn_gradient(f, dy, s, j, columns);
    if (bias && part == 0) add_bias_gradient(f.ldk, s.b, columns, db);
    s.plans.build(f.g, j, columns);
    multiply_columns(f, s, x, first, last, columns, j > begin, dw);
  }
}

// Rows first.. of all shares added up and turned over into dw (K, C*R*S).
void finish_filters(const FilterBlocks& f, float* partial, i64 first, float* dw) {
  const i64 rows = std::min<i64>(LANES, f.g.crs - first);
  float* sum = partial + first * f.ldk;
  for (i64 share = 1; share < f.shares; ++share) {
    const float* other = sum + share * f.partial_floats();
    for (i64 e = 0; e < rows * f.ldk; e += LANES) store(sum + e, load(sum + e) + load(other + e));
  }
  transpose(sum, f.ldk, rows, f.g.K, dw + first, f.g.crs);
}

}  // namespace

extern "C" i64 direct_filter_workspace(const ConvShape* shape, int threads) {
  const Conv g(*shape);
  if (g.columns == 0) return 0;
  const FilterBlocks f(g, threads);
  Arena arena(nullptr);
  FilterShared shared(arena, f);
  return (i64)arena.used + LINE + threads * scratch_bytes<FilterScratch>(f);
}

extern "C" int direct_filter(const ConvShape* shape, const float* x, const float* dy, const float* y,
                                    const uint8_t* arg, float* dw, float* db, int threads, void* workspace) {
  if (bad_shape(shape, threads)) return BAD_ARGUMENT;
  const Conv g(*shape);
  if (g.columns == 0) {
    std::memset(dw, 0, g.K * g.crs * sizeof(float));
    if (db) std::memset(db, 0, g.K * sizeof(float));
    return 0;
  }
  const FilterBlocks f(g, threads);
  Arena arena(aligned(workspace));
  const FilterShared shared(arena, f);
  char* rest = (char*)(arena.base + arena.used);
  const Gradient gradient{dy, y, arg};
#pragma omp parallel num_threads(threads)
  {
    const FilterScratch scratch = thread_scratch<FilterScratch>(rest, f);
#pragma omp for schedule(static, 1)
    for (i64 t = 0; t < f.shares * f.parts; ++t)
      filter_task(f, gradient, x, db, shared, scratch, t / f.parts, t % f.parts);
#pragma omp for schedule(static)
    for (i64 row = 0; row < g.crs; row += LANES) finish_filters(f, shared.dw, row, dw);
  }
  if (db) finish_bias_gradient(f.shares, f.ldk, g.K, shared.db, db);
  return 0;
}
