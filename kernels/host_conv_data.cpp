// Gradient of a convolution to its input: dx = w^T * dy, each product added at once where its column came from.
// A task is some images times some channels of dx, so no two tasks write the same float; within it, a strip of dy is
// packed once and the column gradients of a few channels at a time stay in L2. Sums run over K in blocks of at most KC,
// then over taps: |error| <= (KC + K/KC + R*S) * 2^-24 * |w| |dy|; equal bytes every run with one thread count.
namespace {

struct DataBlocks {
  const Conv& g;
  i64 images, groups, panels, channels, channel_groups, block_channels, kc;

  DataBlocks(const Conv& conv, i64 threads) : g(conv) {
    const i64 plane = g.P * g.Q, taps = g.R * g.S;
    images = std::min(g.N, std::max(ceil_div(g.N, threads), ceil_div(4 * NR, plane)));
    groups = ceil_div(g.N, images);
    images = ceil_div(g.N, groups);
    const i64 most = std::min<i64>(12, std::max<i64>(1, L2_FLOATS / g.K / NR));
    panels = even_split(ceil_div(images * plane, NR), most);
    channels = ceil_div(g.C, std::min(g.C, groups % threads ? ceil_div(2 * threads, groups) : 1));
    channel_groups = ceil_div(g.C, channels);
    block_channels = std::min(channels, std::max<i64>(1, 9 * MR / taps));
    kc = even_split(g.K, KC);
  }
  i64 ld() const { return panels * NR; }
  i64 rows() const { return block_channels * g.R * g.S; }
};

struct DataScratch {
  float *a, *b, *column, *row;
  i64* offsets;
  Plans plans;
  DataScratch(Arena& arena, const DataBlocks& d) : plans(arena, d.g, d.ld()) {
    a = arena.take<float>(ceil_div(d.rows(), MR) * MP * d.g.K);
    b = arena.take<float>(d.ld() * d.g.K);
    column = arena.take<float>(d.rows() * d.ld());
    offsets = arena.take<i64>(d.rows());
    row = arena.take<float>(d.ld() + 2 * d.g.pool);
  }
};

// All rows of dy of `columns` columns into panels (K, NR), padded with zeros.
void pack_gradient(const DataBlocks& d, const Gradient& dy, const DataScratch& s, i64 first, i64 columns) {
  for (i64 k = 0; k < d.g.K; ++k) {
    const float* row = dy.row(d.g, k, first, columns, s.row);
    for (i64 j = 0; j < columns; j += NR) {
      float* to = s.b + j * d.g.K + k * NR;
      if (columns - j >= NR) {
        for (int e = 0; e < NR; e += LANES) store(to + e, load(row + j + e));
      } else {
        for (int e = 0; e < NR; ++e) to[e] = j + e < columns ? row[j + e] : 0;
      }
    }
  }
}

// Columns row.. of w (K, C*R*S) into panels (K, MP) of MR columns.
void pack_filters(const Conv& g, const float* w, i64 first, i64 rows, float* packed) {
  const float* end = w + g.K * g.crs;
  for (i64 k = 0; k < g.K; ++k)
    for (i64 i = 0; i < rows; i += MR) {
      const float* from = w + k * g.crs + first + i;
      float* to = packed + i / MR * MP * g.K + k * MP;
      if (from + MP <= end) for (int e = 0; e < MP; e += LANES) store(to + e, load(from + e));
      else std::memcpy(to, from, std::min<i64>(MR, rows - i) * sizeof(float));
    }
}

// Adds the column gradients of channels first.. to dx: the opposite of packing.
void add_columns(const DataBlocks& d, const DataScratch& s, float* dx, i64 first, i64 channels, i64 columns) {
  const i64 taps = d.g.R * d.g.S, rows = channels * taps;
  find_rows(d.g, s.plans, first * taps, rows, s.offsets);
  for (i64 i = 0; i < rows; ++i) {
    const Plan& plan = s.plans.plans[s.plans.taps > 1 ? i % taps : 0];
    for (i64 v = 0; v * LANES < columns; ++v)
      scatter<true>(plan, v, dx + s.offsets[i], load(s.column + i * d.ld() + v * LANES), d.g.stride_w);
  }
}

void multiply_filters(const DataBlocks& d, const DataScratch& s, i64 rows, i64 columns) {
  for (i64 i = 0; i < rows; i += MR)
    for (i64 k0 = 0; k0 < d.g.K; k0 += d.kc)
      for (i64 j = 0; j < columns; j += NR) {
        float* c = s.column + i * d.ld() + j;
        const Target target{c, d.ld(), (int)round_up(std::min<i64>(NR, columns - j), LANES), k0 ? c : nullptr, d.ld()};
        ColTiles::run((int)std::min<i64>(MR, rows - i), std::min(d.kc, d.g.K - k0), s.a + i / MR * MP * d.g.K + k0 * MP,
                      s.b + j * d.g.K + k0 * NR, target);
      }
}

void data_task(const DataBlocks& d, const Gradient& dy, const float* w, float* dx, const DataScratch& scratch, i64 group,
               i64 channel_group) {
  const Conv& g = d.g;
  DataScratch s = scratch;
  const i64 n = group * d.images, images = std::min(d.images, g.N - n);
  const i64 first = channel_group * d.channels, last = std::min(g.C, first + d.channels), taps = g.R * g.S;
  for (i64 c = first; c < last; ++c)
    std::memset(dx + c * g.image() + n * g.H * g.W, 0, images * g.H * g.W * sizeof(float));
  const i64 begin = n * g.P * g.Q, end = begin + images * g.P * g.Q;
  for (i64 j = begin; j < end; j += d.ld()) {
    const i64 columns = std::min(d.ld(), end - j);
    pack_gradient(d, dy, s, j, columns);
    s.plans.build(g, j, columns);
    for (i64 c = first; c < last; c += d.block_channels) {
      const i64 channels = std::min(d.block_channels, last - c);
      pack_filters(g, w, c * taps, channels * taps, s.a);
      multiply_filters(d, s, channels * taps, columns);
      add_columns(d, s, dx, c, channels, columns);
    }
  }
}

}  // namespace

extern "C" i64 direct_data_workspace(const ConvShape* shape, int threads) {
  const Conv g(*shape);
  return g.columns ? threads * scratch_bytes<DataScratch>(DataBlocks(g, threads)) : 0;
}

extern "C" int direct_data(const ConvShape* shape, const float* dy, const float* y, const uint8_t* arg,
                                  const float* w, float* dx, int threads, void* workspace) {
  if (bad_shape(shape, threads)) return BAD_ARGUMENT;
  const Conv g(*shape);
  if (g.columns == 0) {
    std::memset(dx, 0, g.C * g.image() * sizeof(float));
    return 0;
  }
  const DataBlocks d(g, threads);
  const Gradient gradient{dy, y, arg};
#pragma omp parallel num_threads(threads)
  {
    const DataScratch scratch = thread_scratch<DataScratch>(workspace, d);
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (i64 group = 0; group < d.groups; ++group)
      for (i64 c = 0; c < d.channel_groups; ++c) data_task(d, gradient, w, dx, scratch, group, c);
  }
  return 0;
}
