// Forward convolution of the host: y = w * x (+ bias, ReLU, max-pool) without a column matrix in memory.
// A task is a strip of columns, packed straight from x a block of C*R*S at a time, times a range of filters.
// Sums run over C*R*S in blocks of at most KC, in order: |error| <= (KC + C*R*S/KC) * 2^-24 * |w| |x|, equal bytes for
// any thread count.
namespace {

struct ForwardBlocks {
  const Conv& g;
  i64 kc, panels, strip, strips, tile_rows, tiles, row_blocks;

  ForwardBlocks(const Conv& conv, i64 threads) : g(conv) {
    kc = even_split(g.crs, KC);
    const i64 all = ceil_div(g.columns, NR), most = std::min<i64>(16, std::max<i64>(4, L2_FLOATS / kc / NR));
    if (g.pool > 1) {  // a strip is whole rows of windows
      const i64 unit = g.pool * g.Q, units = ceil_div(g.columns, unit);
      strip = unit * even_split(units, std::max<i64>(1, std::min(most * NR / unit, ceil_div(units, threads))));
      panels = even_split(ceil_div(strip, NR), most);
    } else {
      panels = even_split(all, std::min(most, ceil_div(all, threads)));
      strip = panels * NR;
    }
    strips = ceil_div(g.columns, strip);
    tile_rows = even_split(g.K, MR);
    tiles = ceil_div(g.K, tile_rows);
    row_blocks = strips >= 4 * threads ? 1 : std::min(tiles, ceil_div(2 * threads, strips));
  }
  i64 panel_floats() const { return kc * NR; }
  i64 tiles_at_once() const { return ceil_div(tiles, row_blocks); }
  i64 strip_ld() const { return ceil_div(strip, panels * NR) * panels * NR; }
};

struct ForwardScratch {
  float *a, *b, *partial, *full;
  i64* offsets;
  Plans plans;
  ForwardScratch(Arena& arena, const ForwardBlocks& f) : plans(arena, f.g, f.panels * NR) {
    offsets = arena.take<i64>(f.kc);
    a = arena.take<float>(MR * LDA);
    b = arena.take<float>(f.panels * f.panel_floats());
    partial = arena.take<float>(f.kc < f.g.crs ? f.tiles_at_once() * f.panels * MR * NR : 0);
    full = arena.take<float>(f.g.pool > 1 ? f.tiles_at_once() * f.tile_rows * f.strip_ld() : 0);
  }
};

struct Forward {
  const float *x, *w, *bias;
  float* y;
  uint8_t* arg;
  bool relu;
};

// Rows k0..k0+kc-1 of the planned columns into panels (kc, NR).
void pack_columns(const ForwardBlocks& f, const ForwardScratch& s, const float* x, i64 k0, i64 kc, i64 columns) {
  find_rows(f.g, s.plans, k0, kc, s.offsets);
  for (i64 v = 0; v * LANES < columns; ++v)
    pack_vector(f.g, s.plans, v, x, s.offsets, k0, kc, s.b + v / WIDE * f.panel_floats() + v % WIDE * LANES, NR);
}

// One block of C*R*S of filters first..last-1: unfinished sums go to `partial`, the last block to `y` (rows ldy apart).
void multiply_block(const ForwardBlocks& f, const Forward& op, const ForwardScratch& s, i64 k0, i64 first, i64 last,
                    i64 columns, float* y, i64 ldy) {
  const i64 kc = std::min(f.kc, f.g.crs - k0);
  for (i64 m = first; m < last; m += f.tile_rows) {
    const int rows = (int)std::min(f.tile_rows, last - m);
    for (int i = 0; i < rows; ++i) copy(s.a + i * LDA, op.w + (m + i) * f.g.crs + k0, kc);
    for (i64 p = 0; p * NR < columns; ++p) {
      float* partial = s.partial + ((m - first) / f.tile_rows * f.panels + p) * MR * NR;
      const int width = (int)std::min<i64>(NR, columns - p * NR);
      Target target{partial, NR, (int)round_up(width, LANES), k0 ? partial : nullptr, NR};
      if (k0 + kc == f.g.crs) {
        target.c = y + (m - first) * ldy + p * NR, target.ldc = ldy, target.columns = width;
        target.bias = op.bias ? op.bias + m : nullptr, target.relu = op.relu;
      }
      RowTiles::run(rows, kc, s.a, s.b + p * f.panel_floats(), target);
    }
  }
}

// Maximum and its number within each window of `rows` rows of windows; the first maximum wins, NaN goes through.
template <int POOL>
void pool_rows(const float* __restrict full, i64 rows, i64 any_pool, i64 Q, float* __restrict y, uint8_t* __restrict arg) {
  const i64 pool = POOL ? POOL : any_pool, windows = Q / pool;
  for (i64 r = 0; r < rows; ++r)
    for (i64 u = 0; u < windows; ++u) {
      const float* window = full + r * pool * Q + u * pool;
      float best = window[0];
      int number = 0;
      for (i64 i = 0; i < pool; ++i)
        for (i64 j = i ? 0 : 1; j < pool; ++j) {
          const float v = window[i * Q + j];
          const bool take = (v > best) | ((v != v) & (best == best));
          best = take ? v : best;
          number = take ? (int)(i * pool + j) : number;
        }
      y[r * windows + u] = best;
      if (arg) arg[r * windows + u] = (uint8_t)number;
    }
}

void forward_task(const ForwardBlocks& f, const Forward& op, const ForwardScratch& scratch, i64 strip, i64 row_block) {
  const Conv& g = f.g;
  ForwardScratch s = scratch;
  const i64 begin = strip * f.strip, end = std::min(g.columns, begin + f.strip), step = f.panels * NR;
  const i64 first = row_block * f.tiles / f.row_blocks * f.tile_rows;
  const i64 last = std::min(g.K, (row_block + 1) * f.tiles / f.row_blocks * f.tile_rows);
  for (i64 j = begin; j < end; j += step) {
    const i64 columns = std::min(step, end - j);
    s.plans.build(g, j, columns);
    for (i64 k0 = 0; k0 < g.crs; k0 += f.kc) {
      pack_columns(f, s, op.x, k0, std::min(f.kc, g.crs - k0), columns);
      if (g.pool > 1) multiply_block(f, op, s, k0, first, last, columns, s.full + (j - begin), f.strip_ld());
      else multiply_block(f, op, s, k0, first, last, columns, op.y + first * g.columns + j, g.columns);
    }
  }
  if (g.pool == 1) return;
  const i64 rows = (end - begin) / (g.pool * g.Q), at = begin / (g.pool * g.pool);
  for (i64 m = first; m < last; ++m) {
    const float* full = s.full + (m - first) * f.strip_ld();
    float* y = op.y + m * g.pooled() + at;
    uint8_t* arg = op.arg ? op.arg + m * g.pooled() + at : nullptr;
    if (g.pool == 2) pool_rows<2>(full, rows, 2, g.Q, y, arg);
    else pool_rows<0>(full, rows, g.pool, g.Q, y, arg);
  }
}

}  // namespace

extern "C" i64 direct_forward_workspace(const ConvShape* shape, int threads) {
  const Conv g(*shape);
  return g.columns ? threads * scratch_bytes<ForwardScratch>(ForwardBlocks(g, threads)) : 0;
}

extern "C" int direct_forward(const ConvShape* shape, const float* x, const float* w, const float* bias, int relu, float* y,
                            uint8_t* arg, int threads, void* workspace) {
  if (bad_shape(shape, threads)) return BAD_ARGUMENT;
  const Conv g(*shape);
  if (g.columns == 0) return 0;
  const ForwardBlocks f(g, threads);
  const Forward op{x, w, bias, y, arg, relu != 0};
#pragma omp parallel num_threads(threads)
  {
    const ForwardScratch scratch = thread_scratch<ForwardScratch>(workspace, f);
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (i64 strip = 0; strip < f.strips; ++strip)
      for (i64 block = 0; block < f.row_blocks; ++block) forward_task(f, op, scratch, strip, block);
  }
  return 0;
}
