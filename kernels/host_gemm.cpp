// sgemm of the host: c(m,n) = alpha op(a)(m,k) op(b)(k,n) + beta c, row-major, on the tiles of host_tile.h.
// A task is a strip of columns of b, packed once a block of k, times a range of rows of a. Sums run over k in
// blocks of at most KC, in order: |error| <= (KC + k / KC) * 2^-24 * |a| |b|, equal bytes for any thread count.
namespace {

struct Gemm {
  bool trans_a, trans_b;
  i64 m, n, k;
  float alpha;
  const float* a;
  i64 lda;
  const float* b;
  i64 ldb;
  float beta;
  float* c;
  i64 ldc;
};

struct GemmBlocks {
  static constexpr i64 TILES_AT_ONCE = 8;  // of a transposed a: whole cache lines of its rows are read
  i64 kc, panels, strips, tile_rows, tiles, row_blocks;

  GemmBlocks(i64 m, i64 n, i64 k, i64 threads) {
    kc = std::max<i64>(1, even_split(k, KC));
    i64 all_panels = ceil_div(n, NR), most = std::min<i64>(16, std::max<i64>(1, L2_FLOATS / kc / NR));
    panels = std::max<i64>(1, even_split(all_panels, std::min(most, ceil_div(all_panels, threads))));
    tile_rows = std::max<i64>(1, even_split(m, MR));
    tiles = ceil_div(m, tile_rows);
    strips = ceil_div(all_panels, panels);
    if (all_panels < 2 * threads) panels = all_panels, strips = 1;  // few columns: share out rows instead
    row_blocks = strips >= 4 * threads ? 1 : std::min(tiles, ceil_div(4 * threads, strips));
  }
};

// Columns j0.. of rows k0..k0+kc-1 of op(b) into panels (kc, NR).
void pack_b(const Gemm& g, i64 k0, i64 kc, i64 j0, i64 columns, float* packed) {
  for (i64 j = 0; j < columns; j += NR, packed += kc * NR) {
    i64 width = std::min<i64>(NR, columns - j);
    if (width < NR) std::memset(packed, 0, kc * NR * sizeof(float));
    if (g.trans_b) transpose(g.b + (j0 + j) * g.ldb + k0, g.ldb, width, kc, packed, NR);
    else for (i64 k = 0; k < kc; ++k) copy(packed + k * NR, g.b + (k0 + k) * g.ldb + j0 + j, width);
  }
}

// Rows i0.. of columns k0..k0+kc-1 of alpha op(a): one panel every tile_rows rows.
void pack_a(const Gemm& g, i64 k0, i64 kc, i64 i0, i64 rows, i64 tile_rows, float* packed) {
  if (!g.trans_a) {
    for (i64 i = 0; i < rows; ++i)
      copy(packed + i / tile_rows * MR * LDA + i % tile_rows * LDA, g.a + (i0 + i) * g.lda + k0, kc, g.alpha);
    return;
  }
  for (i64 k = 0; k < kc; ++k)
    for (i64 i = 0; i < rows; i += tile_rows)
      copy(packed + i / tile_rows * kc * MP + k * MP, g.a + (k0 + k) * g.lda + i0 + i, std::min(tile_rows, rows - i),
           g.alpha);
}

struct GemmScratch {
  float *a, *b;
  GemmScratch(Arena& arena, const GemmBlocks& blocks) {
    a = arena.take<float>(GemmBlocks::TILES_AT_ONCE * std::max<i64>(MR * LDA, blocks.kc * MP));
    b = arena.take<float>(blocks.panels * NR * blocks.kc);
  }
};

void gemm_task(const Gemm& g, const GemmBlocks& blocks, i64 strip, i64 row_block, const GemmScratch& scratch) {
  const i64 j0 = strip * blocks.panels * NR, columns = std::min(g.n - j0, blocks.panels * NR);
  const i64 first = row_block * blocks.tiles / blocks.row_blocks * blocks.tile_rows;
  const i64 last = std::min(g.m, (row_block + 1) * blocks.tiles / blocks.row_blocks * blocks.tile_rows);
  for (i64 k0 = 0; k0 < g.k; k0 += blocks.kc) {
    const i64 kc = std::min(blocks.kc, g.k - k0), step = blocks.tile_rows * (g.trans_a ? blocks.TILES_AT_ONCE : 1);
    const float beta = k0 ? 1 : g.beta;
    pack_b(g, k0, kc, j0, columns, scratch.b);
    for (i64 block = first; block < last; block += step) {
      pack_a(g, k0, kc, block, std::min(step, last - block), blocks.tile_rows, scratch.a);
      for (i64 i = block; i < std::min(block + step, last); i += blocks.tile_rows)
        for (i64 j = 0; j < columns; j += NR) {
          float* c = g.c + i * g.ldc + j0 + j;
          Target target{c, g.ldc, (int)std::min<i64>(NR, columns - j), beta ? c : nullptr, g.ldc, beta};
          const int rows = (int)std::min(blocks.tile_rows, last - i);
          const i64 index = (i - block) / blocks.tile_rows;
          if (g.trans_a) ColTiles::run(rows, kc, scratch.a + index * kc * MP, scratch.b + j * kc, target);
          else RowTiles::run(rows, kc, scratch.a, scratch.b + j * kc, target);
        }
    }
  }
}

}  // namespace

extern "C" i64 sgemm_workspace(i64 m, i64 n, i64 k, int threads) {
  if (n <= NARROW) return narrow_workspace(k);
  return threads * scratch_bytes<GemmScratch>(GemmBlocks(m, n, k, threads));
}

extern "C" int sgemm(int trans_a, int trans_b, i64 m, i64 n, i64 k, float alpha, const float* a, i64 lda, const float* b,
                     i64 ldb, float beta, float* c, i64 ldc, int threads, void* workspace) {
  if (threads < 1 || m < 0 || n < 0 || k < 0) return BAD_ARGUMENT;
  if (m == 0 || n == 0) return 0;
  if (k == 0) {
    for (i64 i = 0; i < m; ++i)
      for (i64 j = 0; j < n; ++j) c[i * ldc + j] = beta ? beta * c[i * ldc + j] : 0;
    return 0;
  }
  if (n <= NARROW) {
    narrow(trans_a, trans_b, Narrow{m, n, k, alpha, a, lda, beta, c, ldc}, b, ldb, threads, workspace);
    return 0;
  }
  const Gemm g{trans_a != 0, trans_b != 0, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc};
  const GemmBlocks blocks(m, n, k, threads);
#pragma omp parallel num_threads(threads)
  {
    const GemmScratch scratch = thread_scratch<GemmScratch>(workspace, blocks);
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (i64 strip = 0; strip < blocks.strips; ++strip)
      for (i64 block = 0; block < blocks.row_blocks; ++block) gemm_task(g, blocks, strip, block, scratch);
  }
  return 0;
}
