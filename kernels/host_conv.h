// What the convolutions of the host share: extents, where the columns of x lie, and the gradient that comes in.
// x (C,N,H,W), w (K,C,R,S), y (K,N,P,Q). With pool > 1 the layer ends in a pool x pool maximum at stride pool (floor
// rule), and "columns" are the N*P*Q positions that a window covers: rows and columns of y that no window covers are
// neither computed nor given a gradient.
namespace {

struct ConvShape {
  i64 C, N, H, W, K, R, S, stride_h, stride_w, pad_h, pad_w, pool;
};

struct Conv : ConvShape {
  i64 P, Q, crs, columns;
  explicit Conv(const ConvShape& shape) : ConvShape(shape) {
    P = ((H + 2 * pad_h - R) / stride_h + 1) / pool * pool;
    Q = ((W + 2 * pad_w - S) / stride_w + 1) / pool * pool;
    crs = C * R * S;
    columns = N * P * Q;
  }
  i64 image() const { return N * H * W; }  // floats of one channel of x
  i64 pooled() const { return N * (P / pool) * (Q / pool); }
  bool padded() const { return pad_h || pad_w; }
};

inline bool bad_shape(const ConvShape* s, int threads) {
  return threads < 1 || s->N < 0 || std::min({s->C, s->H, s->W, s->K, s->R, s->S, s->stride_h, s->stride_w, s->pool}) < 1 ||
         std::min(s->pad_h, s->pad_w) < 0 || s->H + 2 * s->pad_h < s->R || s->W + 2 * s->pad_w < s->S || s->pool > 15;
}

// Calls f(t, length, n, p, q) for each stretch of columns first.. that lies in one row of y.
template <class F>
void each_row(const Conv& g, i64 first, i64 count, F f) {
  i64 q = first % g.Q, p = first / g.Q % g.P, n = first / g.Q / g.P;
  for (i64 t = 0; t < count;) {
    const i64 length = std::min(g.Q - q, count - t);
    f(t, length, n, p, q);
    t += length;
    q = 0;
    if (++p == g.P) p = 0, ++n;
  }
}

// `length` columns from `to` on read x from `from` on (relative to a channel), stride_w apart; from < 0 means zeros.
struct Segment {
  i64 from;
  int to, length;
};

// The segments of `count` columns, cut into panels of `width` columns; the last panel is filled up with zeros.
// Without padding one plan serves all filter taps: they differ by r * W + s.
struct Plan {
  Segment* segments;
  i64* start;  // of each panel's segments; one more than panels
  i64* reach;  // farthest float that a vector copy of the panel reads, relative to the channel
  i64 used;

  Plan(Arena& arena, i64 columns, i64 width) {
    const i64 panels = ceil_div(columns, width);
    segments = arena.take<Segment>(columns + panels);
    start = arena.take<i64>(panels + 1);
    reach = arena.take<i64>(panels);
  }
  Plan() = default;

  void build(const Conv& g, i64 first, i64 count, i64 width, i64 r, i64 s) {
    used = start[0] = 0;
    i64 panel = 0;
    for (i64 t = 0; t < count; t += width, start[++panel] = used) {
      const i64 columns = std::min(width, count - t);
      each_row(g, first + t, columns, [&](i64 to, i64 length, i64 n, i64 p, i64 q) { add(g, to, length, n, p, q, r, s); });
      if (columns < width) segments[used++] = {-1, (int)columns, (int)(width - columns)};
      reach[panel] = 0;
      for (i64 i = start[panel]; i < used; ++i)
        if (segments[i].from >= 0)
          reach[panel] = std::max(reach[panel], segments[i].from + round_up(segments[i].length, LANES));
    }
  }

  void add(const Conv& g, i64 to, i64 length, i64 n, i64 p, i64 q, i64 r, i64 s) {
    const i64 h = p * g.stride_h + r - g.pad_h, end = q + length;
    i64 low = std::min(end, std::max(q, ceil_div(std::max<i64>(0, g.pad_w - s), g.stride_w)));
    i64 high = std::max(low, std::min(end, (g.W - 1 + g.pad_w - s + g.stride_w) / g.stride_w));
    if (h < 0 || h >= g.H || g.W - 1 + g.pad_w < s) low = high = end;
    if (low > q) segments[used++] = {-1, (int)to, (int)(low - q)};
    if (high > low)
      segments[used++] = {(n * g.H + h) * g.W + low * g.stride_w + s - g.pad_w, (int)(to + low - q), (int)(high - low)};
    if (end > high) segments[used++] = {-1, (int)(to + high - q), (int)(end - high)};
  }
};

// The plans of all taps of one stretch of columns.
struct Plans {
  Plan* plans;
  i64 taps;
  Plans(Arena& arena, const Conv& g, i64 columns, i64 width, bool every_tap) : taps(every_tap ? g.R * g.S : 1) {
    plans = arena.take<Plan>(taps);
    for (i64 i = 0; i < taps; ++i) {
      Plan plan(arena, columns, width);
      if (arena.base) plans[i] = plan;
    }
  }
  void build(const Conv& g, i64 first, i64 count, i64 width) {
    for (i64 i = 0; i < taps; ++i) plans[i].build(g, first, count, width, i / g.S, i % g.S);
  }
};

// Vectors from..from+length-1, and up to LANES - 1 floats more, to `to`. The empty asm keeps it from becoming a call.
inline void copy_vectors(float* to, const float* from, i64 length) {
  for (i64 e = 0; e < length; e += LANES) {
    store(to + e, load(from + e));
    asm("");
  }
}

// Copies panel `panel` of one row (c, r, s) of the column matrix to dst. May write LANES - 1 floats behind the panel;
// never reads at or behind x_end.
inline void copy_row(const Plan& plan, i64 panel, const float* x, const float* x_end, i64 stride, float* dst) {
  const bool vectors = stride == 1 && plan.reach[panel] <= x_end - x;
  const Segment* last = plan.segments + plan.start[panel + 1];
  for (const Segment* s = plan.segments + plan.start[panel]; s < last; ++s) {
    float* to = dst + s->to;
    const float* from = x + s->from;
    if (s->from < 0) for (int e = 0; e < s->length; e += LANES) store(to + e, vec{});
    else if (vectors) copy_vectors(to, from, s->length);
    else for (int e = 0; e < s->length; ++e) to[e] = from[e * stride];
  }
}

// Row `row` = (c, r, s) of the column matrix: the plan and the base in x.
struct RowSource {
  const Plan* plan;
  const float* base;
  RowSource(const Conv& g, const Plans& plans, const float* x, i64 row) {
    const i64 tap = row % (g.R * g.S), c = row / (g.R * g.S);
    plan = plans.plans + (plans.taps > 1 ? tap : 0);
    base = x + c * g.image() + (plans.taps > 1 ? 0 : tap / g.S * g.W + tap % g.S);
  }
};

// The gradient that comes in: dy at the layer's output. With y it passes ReLU (y > 0); with arg it is pooled,
// (K, N, P/pool, Q/pool), and goes to each window's element arg (row-major within the window).
struct Gradient {
  const float* dy;
  const float* y;
  const uint8_t* arg;

  // `count` columns of channel k from `first` on: a pointer into dy, or scratch (count + 2 * pool floats) filled.
  const float* row(const Conv& g, i64 k, i64 first, i64 count, float* scratch) const {
    if (!arg && !y) return dy + k * g.columns + first;
    if (!arg) {
      const float *d = dy + k * g.columns + first, *v = y + k * g.columns + first;
      for (i64 i = 0; i < count; ++i) scratch[i] = v[i] > 0 ? d[i] : 0;
      return scratch;
    }
    each_row(g, first, count, [&](i64 t, i64 length, i64 n, i64 p, i64 q) {
      const i64 u = q / g.pool, windows = ceil_div(q + length, g.pool) - u, skip = q - u * g.pool;
      const i64 from = ((k * g.N + n) * (g.P / g.pool) + p / g.pool) * (g.Q / g.pool) + u;
      float part[MAX_PART];
      for (i64 done = 0; done < windows; done += MAX_PART / g.pool) {
        const i64 now = std::min(windows - done, MAX_PART / g.pool), begin = done ? 0 : skip;
        const i64 at = t + done * g.pool - (done ? skip : 0);
        spread(from + done, now, g.pool, (int)(p % g.pool * g.pool), part);
        std::memcpy(scratch + at, part + begin, std::min(now * g.pool - begin, t + length - at) * sizeof(float));
      }
    });
    return scratch;
  }

 private:
  static constexpr i64 MAX_PART = 480;
  // One row of `windows` windows, whose first element has number `number`.
  void spread(i64 from, i64 windows, i64 pool, int number, float* out) const {
    if (pool == 2) return spread_row<2>(from, windows, 2, number, out);
    spread_row<0>(from, windows, pool, number, out);
  }
  template <int POOL>
  void spread_row(i64 from, i64 windows, i64 any_pool, int number, float* __restrict out) const {
    const i64 pool = POOL ? POOL : any_pool;
    const float *d = dy + from, *v = y ? y + from : nullptr;
    const uint8_t* a = arg + from;
    for (i64 u = 0; u < windows; ++u) {
      const float value = !v || v[u] > 0 ? d[u] : 0;
      for (i64 b = 0; b < pool; ++b) out[u * pool + b] = a[u] == number + b ? value : 0;
    }
  }
};

}  // namespace
