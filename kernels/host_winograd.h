// Winograd's convolution F(2x2, 3x3) on the host: for 3x3 filters at stride 1, any pad, with or without a 2x2 pool.
// A tile of 2x2 outputs takes 16 products a channel instead of 36: u = G w G', v = B' x B, y = A' (sum of u v) A.
// The backward passes are its exact adjoints, with the same 16 products. Tiles are numbered over images, rows, columns;
// LANES neighbouring tiles make a group, and each of the 16 products is a matrix product of its own (host_tile.h).
// Rounding grows by a small factor against the direct sum, and an infinite x makes its whole tile NaN.
// Source: Lavin and Gray 2016, Fast Algorithms for Convolutional Neural Networks, section 4.1.
namespace {

constexpr int PRODUCTS = 16;

struct Wino {
  Conv g;           // P and Q as Conv says: even with a pool
  i64 down, across, tiles;
  Conv in, out;     // "columns" are two per tile: the pairs of x, and of y, that the tiles of one row read or write
  bool inside;      // no tile reads outside x: one plan serves all its rows
  bool whole;       // no tile lies partly outside y: one plan serves both its rows

  explicit Wino(const ConvShape& shape) : g(shape), in(shape), out(shape) {
    down = ceil_div(g.P, 2), across = ceil_div(g.Q, 2), tiles = g.N * down * across;
    for (Conv* view : {&in, &out}) {
      view->P = down, view->Q = 2 * across, view->columns = 2 * tiles;
      view->stride_h = 2, view->pool = 1;
    }
    out.H = g.P, out.W = g.Q, out.pad_h = out.pad_w = 0;
    inside = !g.padded() && 2 * down + 2 <= g.H && 2 * across + 2 <= g.W;
    whole = 2 * down == g.P && 2 * across == g.Q;
  }
};

inline bool bad_winograd(const ConvShape* s, int threads) {
  return bad_shape(s, threads) || s->R != 3 || s->S != 3 || s->stride_h != 1 || s->stride_w != 1 || s->pool > 2;
}

// Where the groups of one strip lie: pairs of x in rows 0..3, pair 0 or 1 of a row; pairs of y in rows 0..1.
struct TilePlans {
  const Wino& z;
  int ins, outs;
  Plan in[8], out[2];
  TilePlans(Arena& arena, const Wino& wino, i64 tiles)
      : z(wino), ins(z.inside ? 1 : 8), outs(z.g.pool == 2 ? 0 : z.whole ? 1 : 2) {
    for (int i = 0; i < ins; ++i) in[i] = Plan(arena, 2 * tiles);
    for (int i = 0; i < outs; ++i) out[i] = Plan(arena, 2 * tiles);
  }
  void build(i64 first, i64 tiles) {
    for (int i = 0; i < ins; ++i) in[i].build(z.in, 2 * first, 2 * tiles, i / 2, i % 2 * 2);
    for (int i = 0; i < outs; ++i) out[i].build(z.out, 2 * first, 2 * tiles, i, 0);
  }
};

// Vector `vector` of ROWS rows that start at base, base + step[1], ...; one plan for all, or one each.
template <int ROWS>
inline void gather_rows(const Plan* plans, bool shared, i64 vector, const float* base, const i64 (&step)[ROWS],
                        vec (&v)[ROWS]) {
  if (!shared) {
    for (int i = 0; i < ROWS; ++i) v[i] = gather(plans[i], vector, base);
    return;
  }
  const Part *part = plans->begin(vector), *end = plans->end(vector);
  if (part < end && part->mask == ALL_LANES) {
    for (int i = 0; i < ROWS; ++i) v[i] = load(base + part->from + step[i]);
    return;
  }
  for (int i = 0; i < ROWS; ++i) v[i] = vec{};
  for (; part < end; ++part)
    for (int i = 0; i < ROWS; ++i) v[i] = masked_load(base + part->from + step[i], part->mask, v[i]);
}

template <bool ADD, int ROWS>
inline void scatter_rows(const Plan* plans, bool shared, i64 vector, float* base, const i64 (&step)[ROWS],
                         const vec (&v)[ROWS]) {
  if (!shared) {
    for (int i = 0; i < ROWS; ++i) scatter<ADD>(plans[i], vector, base, v[i]);
    return;
  }
  for (const Part *part = plans->begin(vector), *end = plans->end(vector); part < end; ++part)
    for (int i = 0; i < ROWS; ++i) {
      float* to = base + part->from + step[i];
      if (part->mask == ALL_LANES) store(to, ADD ? load(to) + v[i] : v[i]);
      else masked_store(to, part->mask, ADD ? masked_load(to, part->mask, v[i]) + v[i] : v[i]);
    }
}

// ---- pairs of neighbours and vectors of every second float ----

struct Pairs {
  alignas(64) int32_t even[LANES], odd[LANES], low[LANES], high[LANES];
  constexpr Pairs() : even(), odd(), low(), high() {
    for (int e = 0; e < LANES; ++e) {
      even[e] = 2 * e, odd[e] = 2 * e + 1;
      low[e] = e / 2 + (e % 2) * LANES, high[e] = low[e] + LANES / 2;
    }
  }
};
constexpr Pairs PAIRS;

inline vec shuffle(vec a, vec b, const int32_t* lanes) { return __builtin_shuffle(a, b, *(const ivec*)lanes); }

// ---- the transforms: along one axis in place, then along both ----

struct InputForm {
  static void apply(vec& a, vec& b, vec& c, vec& d) {
    const vec sum = b + c, difference = c - b;
    a -= c, d = b - d, b = sum, c = difference;
  }
};
struct InputAdjoint {
  static void apply(vec& a, vec& b, vec& c, vec& d) {
    const vec second = b - c + d, third = b + c - a;
    b = second, c = third, d = -d;
  }
};

template <class Form>
inline void both_axes(vec (&v)[4][4]) {
  for (int i = 0; i < 4; ++i) Form::apply(v[i][0], v[i][1], v[i][2], v[i][3]);
  for (int j = 0; j < 4; ++j) Form::apply(v[0][j], v[1][j], v[2][j], v[3][j]);
}

inline void output_form(const vec (&m)[4][4], vec (&y)[2][2]) {  // A' m A
  vec s[4][2];
  for (int i = 0; i < 4; ++i) s[i][0] = m[i][0] + m[i][1] + m[i][2], s[i][1] = m[i][1] - m[i][2] - m[i][3];
  for (int j = 0; j < 2; ++j) y[0][j] = s[0][j] + s[1][j] + s[2][j], y[1][j] = s[1][j] - s[2][j] - s[3][j];
}

inline void output_adjoint(const vec (&y)[2][2], vec (&m)[4][4]) {  // A y A'
  for (int i = 0; i < 4; ++i) {
    vec s[2];
    for (int j = 0; j < 2; ++j)
      s[j] = i == 0 ? y[0][j] : i == 1 ? y[0][j] + y[1][j] : i == 2 ? y[0][j] - y[1][j] : -y[1][j];
    m[i][0] = s[0], m[i][1] = s[0] + s[1], m[i][2] = s[0] - s[1], m[i][3] = -s[1];
  }
}

inline void filter_form(const vec (&w)[3][3], vec (&u)[4][4]) {  // G w G'
  vec s[4][3];
  for (int j = 0; j < 3; ++j) {
    const vec sum = w[0][j] + w[2][j];
    s[0][j] = w[0][j], s[1][j] = 0.5f * (sum + w[1][j]), s[2][j] = 0.5f * (sum - w[1][j]), s[3][j] = w[2][j];
  }
  for (int i = 0; i < 4; ++i) {
    const vec sum = s[i][0] + s[i][2];
    u[i][0] = s[i][0], u[i][1] = 0.5f * (sum + s[i][1]), u[i][2] = 0.5f * (sum - s[i][1]), u[i][3] = s[i][2];
  }
}

inline void filter_adjoint(const vec (&u)[4][4], vec (&w)[3][3]) {  // G' u G
  vec s[3][4];
  for (int j = 0; j < 4; ++j) {
    const vec sum = 0.5f * (u[1][j] + u[2][j]);
    s[0][j] = u[0][j] + sum, s[1][j] = 0.5f * (u[1][j] - u[2][j]), s[2][j] = sum + u[3][j];
  }
  for (int i = 0; i < 3; ++i) {
    const vec sum = 0.5f * (s[i][1] + s[i][2]);
    w[i][0] = s[i][0] + sum, w[i][1] = 0.5f * (s[i][1] - s[i][2]), w[i][2] = sum + s[i][3];
  }
}

// ---- what goes in: x of channel c, or the gradient of filter k, of one group ----

// Rows of pairs of x, relative to a tile's first float: pair 1 lies over pair 0 of the next tile.
struct InputRows {
  i64 step[8];
  explicit InputRows(const Wino& z) {
    for (int i = 0; i < 8; ++i) step[i] = i / 2 * z.g.W + i % 2 * 2;
  }
};

inline void input_tiles(const TilePlans& plans, const InputRows& rows, i64 group, const float* channel, vec (&v)[4][4]) {
  vec half[2][8];
  for (int h = 0; h < 2; ++h) gather_rows(plans.in, plans.ins == 1, 2 * group + h, channel, rows.step, half[h]);
  for (int i = 0; i < 8; ++i) {
    v[i / 2][i % 2 * 2] = shuffle(half[0][i], half[1][i], PAIRS.even);
    v[i / 2][i % 2 * 2 + 1] = shuffle(half[0][i], half[1][i], PAIRS.odd);
  }
  both_axes<InputForm>(v);
}

inline void output_pairs(const TilePlans& plans, i64 group, const float* base, vec (&d)[2][2]) {
  const i64 step[2] = {0, plans.z.g.Q};
  vec half[2][2];
  for (int h = 0; h < 2; ++h) gather_rows(plans.out, plans.outs == 1, 2 * group + h, base, step, half[h]);
  for (int r = 0; r < 2; ++r) {
    d[r][0] = shuffle(half[0][r], half[1][r], PAIRS.even);
    d[r][1] = shuffle(half[0][r], half[1][r], PAIRS.odd);
  }
}

inline vec where_positive(vec y, vec value) { return y > 0 ? value : vec{}; }

// The gradient behind ReLU and pool that group `group`, tiles `tile` to end - 1 at most, sends to its 2x2 outputs.
inline void gradient_tiles(const TilePlans& plans, const Gradient& dy, i64 k, i64 group, i64 tile, i64 end,
                           vec (&d)[2][2]) {
  const Wino& z = plans.z;
  if (z.g.pool == 2) {
    const i64 at = k * z.tiles + tile, count = std::min<i64>(LANES, end - tile);
    float value[LANES] = {}, top[LANES] = {};
    alignas(LINE) int32_t number[LANES] = {};
    for (i64 e = 0; e < count; ++e) value[e] = dy.dy[at + e], number[e] = dy.arg[at + e];
    if (dy.y) std::memcpy(top, dy.y + at, count * sizeof(float));
    const vec all = dy.y ? where_positive(load(top), load(value)) : load(value);
    for (int i = 0; i < 4; ++i) d[i / 2][i % 2] = *(const ivec*)number == i ? all : vec{};
    return;
  }
  output_pairs(plans, group, dy.dy + k * z.g.columns, d);
  if (!dy.y) return;
  vec top[2][2];
  output_pairs(plans, group, dy.y + k * z.g.columns, top);
  for (int i = 0; i < 4; ++i) d[i / 2][i % 2] = where_positive(top[i / 2][i % 2], d[i / 2][i % 2]);
}

// Products a strip of tiles may hold in L2: 16 * channels * tiles floats.
inline i64 strip_tiles(i64 channels, i64 tiles) {
  const i64 most = std::max<i64>(1, std::min<i64>(8, 8192 / channels / NR));
  return NR * std::max<i64>(1, even_split(ceil_div(tiles, NR), most));
}

// Floats from one product to the next: an odd number of cache lines, so that the 16 do not meet in one set.
inline i64 product_step(i64 floats) { return round_up(floats, 32) + 16; }

}  // namespace
