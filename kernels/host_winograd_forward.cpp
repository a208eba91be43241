// Forward pass of host_winograd.h. The filters are transformed once, for all threads; a task is a strip of tiles times a
// range of filters: its v stays in L2 while u streams by, and the 16 products of 14 filters meet again in L1.
namespace {

struct WinoForwardBlocks {
  const Wino& z;
  i64 strip, strips, tile_rows, row_tiles, row_blocks, kc, v_step;

  WinoForwardBlocks(const Wino& wino, i64 threads) : z(wino) {
    strip = std::min(strip_tiles(z.g.C, z.tiles), round_up(ceil_div(z.tiles, threads), NR));
    strips = ceil_div(z.tiles, strip);
    tile_rows = even_split(z.g.K, MR);
    row_tiles = ceil_div(z.g.K, tile_rows);
    row_blocks = strips >= 4 * threads ? 1 : std::min(row_tiles, ceil_div(2 * threads, strips));
    kc = even_split(z.g.C, KC);
    v_step = product_step(z.g.C * strip);
  }
  i64 filter_floats() const { return row_tiles * PRODUCTS * z.g.C * MP; }
};

struct WinoForwardScratch {
  float *v, *m;
  TilePlans plans;
  WinoForwardScratch(Arena& arena, const WinoForwardBlocks& f) : plans(arena, f.z, f.strip) {
    v = arena.take<float>(PRODUCTS * f.v_step);
    m = arena.take<float>(PRODUCTS * MR * NR);
  }
};

// u of filters first.., `rows` of them, as panels (product, C, MP).
void transform_filters(const Wino& z, const float* w, i64 first, float* u) {
  constexpr i64 AT_ONCE = 16;
  const i64 rows = std::min<i64>(MP, z.g.K - first);
  float taps[AT_ONCE * 9 * MP] = {};
  for (i64 c0 = 0; c0 < z.g.C; c0 += AT_ONCE) {
    const i64 channels = std::min(AT_ONCE, z.g.C - c0);
    transpose(w + first * z.g.crs + c0 * 9, z.g.crs, rows, channels * 9, taps, MP);
    for (i64 c = 0; c < channels; ++c)
      for (int e = 0; e < MP; e += LANES) {
        vec tap[3][3], all[4][4];
        for (int t = 0; t < 9; ++t) tap[t / 3][t % 3] = load(taps + (c * 9 + t) * MP + e);
        filter_form(tap, all);
        for (int i = 0; i < PRODUCTS; ++i) store(u + (i * z.g.C + c0 + c) * MP + e, all[i / 4][i % 4]);
      }
  }
}

// v of a strip as panels (product, panel, C, NR).
void transform_input(const WinoForwardBlocks& f, const WinoForwardScratch& s, const float* x, i64 tiles) {
  const Wino& z = f.z;
  const InputRows rows(z);
  for (i64 c = 0; c < z.g.C; ++c)
    for (i64 group = 0; group * LANES < tiles; ++group) {
      vec v[4][4];
      input_tiles(s.plans, rows, group, x + c * z.g.image(), v);
      float* to = s.v + (group / WIDE * z.g.C + c) * NR + group % WIDE * LANES;
      for (int i = 0; i < PRODUCTS; ++i) store(to + i * f.v_step, v[i / 4][i % 4]);
    }
}

// First maximum of each tile and its number, NaN above all, to `count` places from y and arg on.
inline void store_maximum(const vec (&d)[2][2], float* y, uint8_t* arg, i64 count) {
  vec best = d[0][0];
  ivec number = {};
  for (int i = 1; i < 4; ++i) {
    const vec v = d[i / 2][i % 2];
    const ivec take = (v > best) | ((v != v) & (best == best));
    best = take ? v : best;
    number = take ? i - ivec{} : number;
  }
  masked_store(y, ALL_LANES >> (LANES - count), best);
  for (i64 e = 0; arg && e < count; ++e) arg[e] = (uint8_t)number[e];
}

// The outputs of filter k and group `group`, whose first tile is `tile`, from its 16 products, `apart` floats apart.
inline void finish_group(const Wino& z, const TilePlans& plans, const Forward& op, const float* products, i64 apart, i64 k,
                         i64 group, i64 tile) {
  vec m[4][4], d[2][2];
  for (int i = 0; i < PRODUCTS; ++i) m[i / 4][i % 4] = load(products + i * apart);
  output_form(m, d);
  for (int i = 0; i < 4; ++i) {
    vec& v = d[i / 2][i % 2];
    if (op.bias) v += op.bias[k] - vec{};
    if (op.relu) v = v < 0 ? vec{} : v;
  }
  if (z.g.pool == 2) {
    const i64 at = k * z.tiles + tile;
    return store_maximum(d, op.y + at, op.arg ? op.arg + at : nullptr, std::min<i64>(LANES, z.tiles - tile));
  }
  const i64 step[2] = {0, z.g.Q};
  const vec halves[2][2] = {{shuffle(d[0][0], d[0][1], PAIRS.low), shuffle(d[1][0], d[1][1], PAIRS.low)},
                            {shuffle(d[0][0], d[0][1], PAIRS.high), shuffle(d[1][0], d[1][1], PAIRS.high)}};
  for (int h = 0; h < 2; ++h)
    scatter_rows<false>(plans.out, plans.outs == 1, 2 * group + h, op.y + k * z.g.columns, step, halves[h]);
}

void wino_forward_task(const WinoForwardBlocks& f, const Forward& op, const float* u, const WinoForwardScratch& scratch,
                       i64 strip, i64 block) {
  const Wino& z = f.z;
  WinoForwardScratch s = scratch;
  const i64 begin = strip * f.strip, tiles = std::min(f.strip, z.tiles - begin), C = z.g.C;
  s.plans.build(begin, tiles);
  transform_input(f, s, op.x, tiles);
  for (i64 row = block * f.row_tiles / f.row_blocks; row < (block + 1) * f.row_tiles / f.row_blocks; ++row) {
    const i64 k = row * f.tile_rows, rows = std::min(f.tile_rows, z.g.K - k);
    for (i64 t = 0; t < tiles; t += NR) {
      const i64 width = round_up(std::min<i64>(NR, tiles - t), LANES);
      for (int i = 0; i < PRODUCTS; ++i)
        for (i64 c = 0; c < C; c += f.kc) {
          float* m = s.m + i * MR * NR;
          ColTiles::run((int)rows, std::min(f.kc, C - c), u + ((row * PRODUCTS + i) * C + c) * MP,
                        s.v + i * f.v_step + (t / NR * C + c) * NR, Target{m, NR, (int)width, c ? m : nullptr, NR});
        }
      for (i64 r = 0; r < rows; ++r)
        for (i64 e = 0; e < width; e += LANES)
          finish_group(z, s.plans, op, s.m + r * NR + e, MR * NR, k + r, (t + e) / LANES, begin + t + e);
    }
  }
}

}  // namespace

extern "C" i64 winograd_forward_workspace(const ConvShape* shape, int threads) {
  const Wino z(*shape);
  if (z.tiles == 0) return 0;
  const WinoForwardBlocks f(z, threads);
  Arena arena(nullptr);
  arena.take<float>(f.filter_floats());
  return (i64)arena.used + LINE + threads * scratch_bytes<WinoForwardScratch>(f);
}

extern "C" int winograd_forward(const ConvShape* shape, const float* x, const float* w, const float* bias, int relu,
                                float* y, uint8_t* arg, int threads, void* workspace) {
  if (bad_winograd(shape, threads)) return BAD_ARGUMENT;
  const Wino z(*shape);
  if (z.tiles == 0) return 0;
  const WinoForwardBlocks f(z, threads);
  Arena arena(aligned(workspace));
  float* u = arena.take<float>(f.filter_floats());
  const Forward op{x, w, bias, y, arg, relu != 0};
#pragma omp parallel num_threads(threads)
  {
    const WinoForwardScratch scratch = thread_scratch<WinoForwardScratch>((void*)(arena.base + arena.used), f);
#pragma omp for schedule(static)
    for (i64 row = 0; row < f.row_tiles; ++row)
      transform_filters(z, w, row * f.tile_rows, u + row * PRODUCTS * z.g.C * MP);
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (i64 strip = 0; strip < f.strips; ++strip)
      for (i64 block = 0; block < f.row_blocks; ++block) wino_forward_task(f, op, u, scratch, strip, block);
  }
  return 0;
}
