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

// Lanes of one vector of columns that read x in a stretch: lane e at from + e * stride_w, relative to a channel.
struct Part {
  i64 from;
  uint32_t mask;
};

// The parts of a stretch of columns, LANES columns after LANES columns; lanes without a part are padding, hence zero.
// Without padding one plan serves all filter taps: they differ by r * W + s.
struct Plan {
  Part* parts;
  i64* start;  // of each vector's parts, of an empty vector behind the last, and its end

  Plan() = default;
  Plan(Arena& arena, i64 columns) : parts(arena.take<Part>(columns)) {
    start = arena.take<i64>(ceil_div(columns, LANES) + 2);
  }

  void build(const Conv& g, i64 first, i64 count, i64 r, i64 s) {
    i64 used = start[0] = 0, vectors = 0;
    for (i64 t = 0; t < count; t += LANES, start[++vectors] = used)
      each_row(g, first + t, std::min<i64>(LANES, count - t), [&](i64 to, i64 length, i64 n, i64 p, i64 q) {
        const i64 h = p * g.stride_h + r - g.pad_h, left = s - g.pad_w, end = q + length;
        if (h < 0 || h >= g.H || g.W - 1 < left) return;
        const i64 low = std::max(q, ceil_div(std::max<i64>(0, -left), g.stride_w));
        const i64 high = std::min(end, (g.W - 1 - left) / g.stride_w + 1);
        if (high <= low) return;
        const i64 from = (n * g.H + h) * g.W + low * g.stride_w + left, lane = to + low - q;
        parts[used++] = {from - lane * g.stride_w, ((1u << (high - low)) - 1) << lane};
      });
    start[vectors + 1] = used;
  }
  const Part* begin(i64 vector) const { return parts + start[vector]; }
  const Part* end(i64 vector) const { return parts + start[vector + 1]; }
};

// The plans of all taps of one stretch of columns.
struct Plans {
  Plan* plans;
  i64 taps;
  Plans(Arena& arena, const Conv& g, i64 columns) : taps(g.padded() ? g.R * g.S : 1) {
    plans = arena.take<Plan>(taps);
    for (i64 i = 0; i < taps; ++i) {
      const Plan plan(arena, columns);
      if (arena.base) plans[i] = plan;
    }
  }
  void build(const Conv& g, i64 first, i64 count) {
    for (i64 i = 0; i < taps; ++i) plans[i].build(g, first, count, i / g.S, i % g.S);
  }
};

inline vec load_part(const float* from, uint32_t mask, i64 stride, vec otherwise) {
  if (stride == 1) return masked_load(from, mask, otherwise);
  for (int e = 0; e < LANES; ++e)
    if (mask >> e & 1) otherwise[e] = from[e * stride];
  return otherwise;
}

// One vector of columns of the row that starts at base.
inline vec gather(const Plan& plan, i64 vector, const float* base, i64 stride = 1) {
  const Part *part = plan.begin(vector), *end = plan.end(vector);
  if (part < end && part->mask == ALL_LANES && stride == 1) return load(base + part->from);
  vec result = {};
  for (; part < end; ++part) result = load_part(base + part->from, part->mask, stride, result);
  return result;
}

// The opposite: base[lane] = v, or += v, for the lanes that are not padding.
template <bool ADD>
inline void scatter(const Plan& plan, i64 vector, float* base, vec v, i64 stride = 1) {
  for (const Part *part = plan.begin(vector), *end = plan.end(vector); part < end; ++part) {
    float* to = base + part->from;
    if (stride == 1) {
      if (part->mask == ALL_LANES) store(to, ADD ? load(to) + v : v);
      else masked_store(to, part->mask, ADD ? masked_load(to, part->mask, v) + v : v);
      continue;
    }
    for (int e = 0; e < LANES; ++e)
      if (part->mask >> e & 1) to[e * stride] = ADD ? to[e * stride] + v[e] : v[e];
  }
}

// Offsets of rows first.. of the column matrix, for the two below.
inline void find_rows(const Conv& g, const Plans& plans, i64 first, i64 rows, i64* offsets) {
  const i64 taps = g.R * g.S;
  for (i64 i = 0; i < rows; ++i) {
    const i64 tap = (first + i) % taps, c = (first + i) / taps;
    offsets[i] = c * g.image() + (plans.taps > 1 ? 0 : tap / g.S * g.W + tap % g.S);
  }
}

// Calls f(plan, i) for rows first.. of the column matrix, the rows of one tap after each other.
template <class F>
inline void each_tap_row(const Conv& g, const Plans& plans, i64 first, i64 rows, F f) {
  const i64 taps = g.R * g.S;
  for (i64 tap = 0; tap < taps; ++tap)
    for (i64 i = (tap + taps - first % taps) % taps; i < rows; i += taps) f(plans.plans[plans.taps > 1 ? tap : 0], i);
}

// One vector of columns of `rows` rows from `first` on, to dst, dst + ld, ...; offsets from find_rows.
inline void pack_vector(const Conv& g, const Plans& plans, i64 vector, const float* x, const i64* offsets, i64 first,
                        i64 rows, float* dst, i64 ld) {
  const Part* part = plans.plans->begin(vector);
  const i64 parts = plans.plans->end(vector) - part;
  if (plans.taps > 1 || g.stride_w > 1 || parts == 0 || parts > 2) {
    each_tap_row(g, plans, first, rows, [&](const Plan& plan, i64 i) {
      store(dst + i * ld, gather(plan, vector, x + offsets[i], g.stride_w));
    });
  } else if (parts == 2) {
    const Part one = part[0], two = part[1];
    for (i64 i = 0; i < rows; ++i) {
      const vec v = masked_load(x + offsets[i] + one.from, one.mask, vec{});
      store(dst + i * ld, masked_load(x + offsets[i] + two.from, two.mask, v));
    }
  } else {
    const Part one = *part;
    if (one.mask == ALL_LANES) for (i64 i = 0; i < rows; ++i) store(dst + i * ld, load(x + offsets[i] + one.from));
    else for (i64 i = 0; i < rows; ++i) store(dst + i * ld, masked_load(x + offsets[i] + one.from, one.mask, vec{}));
  }
}

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
