// Gradient to the input by host_winograd.h, the adjoint of its forward pass: dx = sum over tiles of B (u' z) B', where
// z = A dy A'. A task is some images times some channels of dx, so no two tasks write the same float; every float of dx
// is a sum in a fixed order: equal bytes every run with one thread count.
namespace {

struct WinoDataBlocks {
  const Wino& z;
  i64 images, groups, strip, tile_rows, row_tiles, row_blocks, kc, v_step;

  WinoDataBlocks(const Wino& wino, i64 threads) : z(wino) {
    const i64 plane = z.down * z.across;
    images = std::min(z.g.N, std::max(ceil_div(z.g.N, threads), ceil_div(NR, plane)));
    groups = ceil_div(z.g.N, images);
    images = ceil_div(z.g.N, groups);
    strip = strip_tiles(z.g.K, images * plane);
    tile_rows = even_split(z.g.C, MR);
    row_tiles = ceil_div(z.g.C, tile_rows);
    row_blocks = std::min(row_tiles, groups % threads ? ceil_div(2 * threads, groups) : 1);
    kc = even_split(z.g.K, KC);
    v_step = product_step(z.g.K * strip);
  }
  i64 filter_floats() const { return row_tiles * PRODUCTS * z.g.K * MP; }
};

struct WinoDataScratch {
  float *v, *m;
  TilePlans plans;
  WinoDataScratch(Arena& arena, const WinoDataBlocks& d) : plans(arena, d.z, d.strip) {
    v = arena.take<float>(PRODUCTS * d.v_step);
    m = arena.take<float>(PRODUCTS * MR * NR);
  }
};

// u of channels first.., `rows` of them, as panels (product, K, MP).
void transform_filters_of_channels(const Wino& z, const float* w, i64 first, float* u) {
  const i64 rows = std::min<i64>(MP, z.g.C - first);
  const float* end = w + z.g.K * z.g.crs;
  float taps[16 * MP] = {};
  for (i64 k = 0; k < z.g.K; ++k) {
    const float* from = w + k * z.g.crs + first * 9;
    const i64 width = from + (rows - 1) * 9 + 16 <= end ? 16 : 9;  // whole squares where w goes on
    transpose(from, 9, rows, width, taps, MP);
    for (int e = 0; e < MP; e += LANES) {
      vec tap[3][3], all[4][4];
      for (int t = 0; t < 9; ++t) tap[t / 3][t % 3] = load(taps + t * MP + e);
      filter_form(tap, all);
      for (int i = 0; i < PRODUCTS; ++i) store(u + (i * z.g.K + k) * MP + e, all[i / 4][i % 4]);
    }
  }
}

// z of a strip as panels (product, panel, K, NR).
void transform_gradient(const WinoDataBlocks& d, const WinoDataScratch& s, const Gradient& dy, i64 first, i64 tiles) {
  const Wino& z = d.z;
  for (i64 k = 0; k < z.g.K; ++k)
    for (i64 group = 0; group * LANES < tiles; ++group) {
      vec y[2][2], m[4][4];
      gradient_tiles(s.plans, dy, k, group, first + group * LANES, first + tiles, y);
      output_adjoint(y, m);
      float* to = s.v + (group / WIDE * z.g.K + k) * NR + group % WIDE * LANES;
      for (int i = 0; i < PRODUCTS; ++i) store(to + i * d.v_step, m[i / 4][i % 4]);
    }
}

// Adds B m B' of one channel and group to dx.
inline void add_group(const TilePlans& plans, const InputRows& rows, const float* products, i64 group, float* channel) {
  vec m[4][4];
  for (int i = 0; i < PRODUCTS; ++i) m[i / 4][i % 4] = load(products + i * MR * NR);
  both_axes<InputAdjoint>(m);
  for (int pair = 0; pair < 2; ++pair)  // in this order, because the second pairs lie over the first of the next tiles
    for (int h = 0; h < 2; ++h) {
      i64 step[4];
      vec half[4];
      Plan own[4];
      for (int r = 0; r < 4; ++r) {
        step[r] = rows.step[2 * r + pair];
        half[r] = shuffle(m[r][2 * pair], m[r][2 * pair + 1], h ? PAIRS.high : PAIRS.low);
        if (plans.ins > 1) own[r] = plans.in[2 * r + pair];
      }
      scatter_rows<true>(plans.ins > 1 ? own : plans.in, plans.ins == 1, 2 * group + h, channel, step, half);
    }
}

void wino_data_task(const WinoDataBlocks& d, const Gradient& dy, const float* u, float* dx, const WinoDataScratch& scratch,
                    i64 group, i64 block) {
  const Wino& z = d.z;
  WinoDataScratch s = scratch;
  const i64 n = group * d.images, images = std::min(d.images, z.g.N - n), plane = z.down * z.across, K = z.g.K;
  const i64 first = block * d.row_tiles / d.row_blocks, last = (block + 1) * d.row_tiles / d.row_blocks;
  for (i64 c = first * d.tile_rows; c < std::min(z.g.C, last * d.tile_rows); ++c)
    std::memset(dx + c * z.g.image() + n * z.g.H * z.g.W, 0, images * z.g.H * z.g.W * sizeof(float));
  const InputRows input_rows(z);
  for (i64 begin = n * plane, end = begin + images * plane; begin < end; begin += d.strip) {
    const i64 tiles = std::min(d.strip, end - begin);
    s.plans.build(begin, tiles);
    transform_gradient(d, s, dy, begin, tiles);
    for (i64 row = first; row < last; ++row) {
      const i64 c = row * d.tile_rows, rows = std::min(d.tile_rows, z.g.C - c);
      for (i64 t = 0; t < tiles; t += NR) {
        const i64 width = round_up(std::min<i64>(NR, tiles - t), LANES);
        for (int i = 0; i < PRODUCTS; ++i)
          for (i64 k = 0; k < K; k += d.kc) {
            float* m = s.m + i * MR * NR;
            ColTiles::run((int)rows, std::min(d.kc, K - k), u + ((row * PRODUCTS + i) * K + k) * MP,
                          s.v + i * d.v_step + (t / NR * K + k) * NR, Target{m, NR, (int)width, k ? m : nullptr, NR});
          }
        for (i64 r = 0; r < rows; ++r)
          for (i64 e = 0; e < width; e += LANES)
            add_group(s.plans, input_rows, s.m + r * NR + e, (t + e) / LANES, dx + (c + r) * z.g.image());
      }
    }
  }
}

}  // namespace

extern "C" i64 winograd_data_workspace(const ConvShape* shape, int threads) {
  const Wino z(*shape);
  if (z.tiles == 0) return 0;
  const WinoDataBlocks d(z, threads);
  Arena arena(nullptr);
  arena.take<float>(d.filter_floats());
  return (i64)arena.used + LINE + threads * scratch_bytes<WinoDataScratch>(d);
}

extern "C" int winograd_data(const ConvShape* shape, const float* dy, const float* y, const uint8_t* arg, const float* w,
                             float* dx, int threads, void* workspace) {
  if (bad_winograd(shape, threads)) return BAD_ARGUMENT;
  const Wino z(*shape);
  if (z.tiles == 0) {
    std::memset(dx, 0, z.g.C * z.g.image() * sizeof(float));
    return 0;
  }
  const WinoDataBlocks d(z, threads);
  Arena arena(aligned(workspace));
  float* u = arena.take<float>(d.filter_floats());
  const Gradient gradient{dy, y, arg};
#pragma omp parallel num_threads(threads)
  {
    const WinoDataScratch scratch = thread_scratch<WinoDataScratch>((void*)(arena.base + arena.used), d);
#pragma omp for schedule(static)
    for (i64 row = 0; row < d.row_tiles; ++row)
      transform_filters_of_channels(z, w, row * d.tile_rows, u + row * PRODUCTS * z.g.K * MP);
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (i64 group = 0; group < d.groups; ++group)
      for (i64 block = 0; block < d.row_blocks; ++block) wino_data_task(d, gradient, u, dx, scratch, group, block);
  }
  return 0;
}
