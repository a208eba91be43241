// Gradient to the filters by host_winograd.h, the adjoint of its forward pass: dw = G' (sum over tiles of z v) G.
// Threads form a grid as in host_conv_filter.cpp: shares of the tiles times parts of the channels. Sums run over tiles in
// blocks of DEPTH; equal bytes every run with one thread count.
namespace {

struct WinoFilterBlocks {
  static constexpr i64 DEPTH = KC / 2;  // tiles at a time: two products share the rows of a row-major panel
  const Wino& z;
  i64 ldk, tile_rows, row_tiles, shares, parts, share;

  WinoFilterBlocks(const Wino& wino, i64 threads) : z(wino) {
    ldk = round_up(z.g.K, NR);
    tile_rows = even_split(z.g.C, MR);
    row_tiles = ceil_div(z.g.C, tile_rows);
    const double turn = 8.0 / PRODUCTS * MR;  // a group of the gradient costs as much as half a tile of the product
    choose_grid(threads, z.tiles, row_tiles * PRODUCTS, tile_rows, turn * ldk / LANES, z.g.C * PRODUCTS * ldk / LANES,
                ldk / LANES, shares, parts);
    share = round_up(ceil_div(z.tiles, shares), LANES);
  }
  i64 partial_floats() const { return PRODUCTS * z.g.C * ldk; }
  i64 gradient_floats() const { return product_step(DEPTH * ldk); }  // of one product
  static i64 v_panel(i64 product, i64 row_tile) {
    return (row_tile * PRODUCTS + product) / 2 * MR * LDA + product % 2 * DEPTH;
  }
};

struct WinoFilterScratch {
  float *v, *turned, *groups;
  TilePlans plans;
  WinoFilterScratch(Arena& arena, const WinoFilterBlocks& f) : plans(arena, f.z, f.DEPTH) {
    v = arena.take<float>(PRODUCTS / 2 * f.row_tiles * MR * LDA);
    turned = arena.take<float>(PRODUCTS * f.gradient_floats());
    groups = arena.take<float>(2 * 4 * LANES * LANES);
  }
};

struct WinoFilterShared {
  float *dw, *db;  // (shares, product, C, ldk), (shares, ldk)
  WinoFilterShared(Arena& arena, const WinoFilterBlocks& f) {
    dw = arena.take<float>(f.shares * f.partial_floats());
    db = arena.take<float>(f.shares * f.ldk);
  }
};

// z of `tiles` tiles, turned over into panels (product, panel of K, tiles, NR).
void turn_tiles(const WinoFilterBlocks& f, const Gradient& dy, const WinoFilterScratch& s, i64 first, i64 tiles) {
  const Wino& z = f.z;
  const i64 padded = round_up(tiles, LANES);
  for (i64 k = 0; k < z.g.K; k += LANES)
    for (i64 group = 0; group * LANES < tiles; ++group) {
      float *rows = s.groups, *columns = s.groups + 4 * LANES * LANES;
      for (i64 r = 0; r < LANES; ++r) {
        vec y[2][2] = {};
        if (k + r < z.g.K) gradient_tiles(s.plans, dy, k + r, group, first + group * LANES, first + tiles, y);
        for (int i = 0; i < 4; ++i) store(rows + (i * LANES + r) * LANES, y[i / 2][i % 2]);
      }
      for (int i = 0; i < 4; ++i)
        transpose_square(rows + i * LANES * LANES, LANES, columns + i * LANES * LANES, LANES);
      float* to = s.turned + k / NR * NR * padded + group * LANES * NR + k % NR;
      for (i64 t = 0; t < LANES; ++t) {
        vec y[2][2], m[4][4];
        for (int i = 0; i < 4; ++i) y[i / 2][i % 2] = load(columns + (i * LANES + t) * LANES);
        output_adjoint(y, m);
        for (int i = 0; i < PRODUCTS; ++i) store(to + i * f.gradient_floats() + t * NR, m[i / 4][i % 4]);
      }
    }
}

// v of `tiles` tiles of channels first..last-1, one row of a panel each.
void transform_rows(const WinoFilterBlocks& f, const WinoFilterScratch& s, const float* x, i64 first, i64 last, i64 tiles) {
  const Wino& z = f.z;
  const InputRows rows(z);
  for (i64 c = first; c < last; ++c) {
    float* row = s.v + f.v_panel(0, c / f.tile_rows) + c % f.tile_rows * LDA;
    for (i64 group = 0; group * LANES < tiles; ++group) {
      vec v[4][4];
      input_tiles(s.plans, rows, group, x + c * z.g.image(), v);
      for (int i = 0; i < PRODUCTS; ++i) store(row + f.v_panel(i, 0) + group * LANES, v[i / 4][i % 4]);
    }
  }
}

void wino_filter_task(const WinoFilterBlocks& f, const Gradient& dy, const float* x, bool bias,
                      const WinoFilterShared& shared, const WinoFilterScratch& scratch, i64 share, i64 part) {
  const Wino& z = f.z;
  WinoFilterScratch s = scratch;
  const i64 begin = std::min(z.tiles, share * f.share), end = std::min(z.tiles, begin + f.share), C = z.g.C;
  const i64 first = part * f.row_tiles / f.parts, last = (part + 1) * f.row_tiles / f.parts;
  const i64 first_c = first * f.tile_rows, last_c = std::min(C, last * f.tile_rows);
  float *dw = shared.dw + share * f.partial_floats(), *db = shared.db + share * f.ldk;
  if (part == 0) std::memset(db, 0, f.ldk * sizeof(float));
  for (int i = 0; i < PRODUCTS && begin == end; ++i)
    std::memset(dw + (i * C + first_c) * f.ldk, 0, std::max<i64>(0, last_c - first_c) * f.ldk * sizeof(float));
  for (i64 t = begin; t < end; t += f.DEPTH) {
    const i64 tiles = std::min(f.DEPTH, end - t), depth = round_up(tiles, LANES);
    s.plans.build(t, tiles);
    turn_tiles(f, dy, s, t, tiles);
    if (bias && part == 0) add_bias_gradient(f.ldk, s.turned + 5 * f.gradient_floats(), depth, db);  // z(1,1) = sum of dy
    transform_rows(f, s, x, first_c, last_c, tiles);
    for (int i = 0; i < PRODUCTS; ++i)
      for (i64 row = first; row < last; ++row)
        for (i64 k = 0; k < z.g.K; k += NR) {
          const i64 c = row * f.tile_rows;
          float* to = dw + (i * C + c) * f.ldk + k;
          const Target target{to, f.ldk, (int)round_up(std::min<i64>(NR, z.g.K - k), LANES), t > begin ? to : nullptr, f.ldk};
          RowTiles::run((int)std::min(f.tile_rows, C - c), depth, s.v + f.v_panel(i, row),
                        s.turned + i * f.gradient_floats() + k * depth, target);
        }
  }
}

// dw of LANES filters from k on and up to 16 channels from c0 on: the shares added up, transformed, turned over.
void finish_winograd_filters(const WinoFilterBlocks& f, const float* partial, i64 k, i64 c0, i64 channels, float* dw) {
  const Wino& z = f.z;
  float taps[16 * 9 * LANES];
  for (i64 c = 0; c < channels; ++c) {
    vec u[4][4], w[3][3];
    for (int i = 0; i < PRODUCTS; ++i) {
      const float* from = partial + (i * z.g.C + c0 + c) * f.ldk + k;
      vec sum = load(from);
      for (i64 share = 1; share < f.shares; ++share) sum += load(from + share * f.partial_floats());
      u[i / 4][i % 4] = sum;
    }
    filter_adjoint(u, w);
    for (int t = 0; t < 9; ++t) store(taps + (c * 9 + t) * LANES, w[t / 3][t % 3]);
  }
  transpose(taps, LANES, channels * 9, std::min<i64>(LANES, z.g.K - k), dw + k * z.g.crs + c0 * 9, z.g.crs);
}

}  // namespace

extern "C" i64 winograd_filter_workspace(const ConvShape* shape, int threads) {
  const Wino z(*shape);
  if (z.tiles == 0) return 0;
  const WinoFilterBlocks f(z, threads);
  Arena arena(nullptr);
  WinoFilterShared shared(arena, f);
  return (i64)arena.used + LINE + threads * scratch_bytes<WinoFilterScratch>(f);
}

extern "C" int winograd_filter(const ConvShape* shape, const float* x, const float* dy, const float* y, const uint8_t* arg,
                               float* dw, float* db, int threads, void* workspace) {
  if (bad_winograd(shape, threads)) return BAD_ARGUMENT;
  const Wino z(*shape);
  if (z.tiles == 0) {
    std::memset(dw, 0, z.g.K * z.g.crs * sizeof(float));
    if (db) std::memset(db, 0, z.g.K * sizeof(float));
    return 0;
  }
  const WinoFilterBlocks f(z, threads);
  Arena arena(aligned(workspace));
  const WinoFilterShared shared(arena, f);
  const Gradient gradient{dy, y, arg};
#pragma omp parallel num_threads(threads)
  {
    const WinoFilterScratch scratch = thread_scratch<WinoFilterScratch>((void*)(arena.base + arena.used), f);
#pragma omp for schedule(static, 1)
    for (i64 t = 0; t < f.shares * f.parts; ++t)
      wino_filter_task(f, gradient, x, db, shared, scratch, t / f.parts, t % f.parts);
#pragma omp for collapse(2) schedule(static)
    for (i64 k = 0; k < z.g.K; k += LANES)
      for (i64 c = 0; c < z.g.C; c += 16)
        finish_winograd_filters(f, shared.dw, k, c, std::min<i64>(16, z.g.C - c), dw);
  }
  if (db) finish_bias_gradient(f.shares, f.ldk, z.g.K, shared.db, db);
  return 0;
}
