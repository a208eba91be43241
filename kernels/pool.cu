// Max-pooling of C*N planes: y(planes,P,Q) from x(planes,H,W), and its gradient.
//
// The first maximum of a window (row by row) takes the gradient; NaN is greater than everything. `arg` is its index inside
// the window: one byte where a window has at most 256 elements. Pad is less than the window, so that every window holds
// an element of x; padding never wins. The gradient is a gather: no atomics, so equal bytes every run.

// A value takes the place of `best` if it is the first one, greater, or the first NaN. Here and below & and | instead of
// && and ||, which would keep the host's compiler from making vectors.
__device__ inline void take(float v, int tap, float& best, int& where) {
  const bool better = (where < 0) | ((v > best) | (v != v)) & (best == best);
  best = better ? v : best;
  where = better ? tap : where;
}

template <class Index>
__device__ inline void pool(const float* __restrict__ x, float* __restrict__ y, Index* __restrict__ arg, i64 planes, i64 H,
                            i64 W, i64 P, i64 Q, i64 R, i64 S, i64 sh, i64 sw, i64 ph, i64 pw) {
  RUN_LOOP(all, run, 1, planes * P * Q, Q) {
    float best[RUN];
    int where[RUN];
    EACH_LINE(plane, p, run, P, Q) {
      const i64 h0 = p * sh - ph, q0 = (plane * P + p) * Q;
      EACH(i, run, q0, q0 + Q) best[i - run.begin] = 0.f, where[i - run.begin] = -1;
      for (i64 r = h0 < 0 ? -h0 : 0; r < R && h0 + r < H; ++r)
        for (i64 s = 0; s < S; ++s) {
          const int tap = (int)(r * S + s);
          const float* seen = x + (plane * H + h0 + r) * W + s - pw;
          const i64 begin = q0 + steps_below(pw - s, sw, Q), end = q0 + steps_below(W + pw - s, sw, Q);
          if (sw == 2)
            EACH(i, run, begin, end) take(seen[2 * (i - q0)], tap, best[i - run.begin], where[i - run.begin]);
          else
            EACH(i, run, begin, end) take(seen[(i - q0) * sw], tap, best[i - run.begin], where[i - run.begin]);
        }
      EACH(i, run, q0, q0 + Q) y[i] = best[i - run.begin];
    }
    EACH(i, run, 0, planes * P * Q) arg[i] = (Index)where[i - run.begin];
  }
}

// With `relu`, the gradient of a ReLU before the pool is taken in the same pass: dy counts unless the window's maximum
// `pooled` is at or below this value. Without one nothing is: nothing compares with NaN.
__device__ inline float gate(int relu) { return relu ? 0.f : NAN; }

// dx[h,w] = sum of dy of the windows whose maximum is (h,w). Item t of a line stands for the sw elements
// w = t*sw + u - pw; those of equal u lie under the same columns s = u, u+sw, ... of the windows q = t, t-1, ...
template <class Index>
__device__ inline void unpool(const float* __restrict__ dy, const Index* __restrict__ arg, const float* __restrict__ pooled,
                              float* __restrict__ dx, int relu, i64 planes, i64 H, i64 W, i64 P, i64 Q, i64 R, i64 S,
                              i64 sh, i64 sw, i64 ph, i64 pw) {
  const i64 T = (W + pw - 1) / sw + 1;
  const float closed = gate(relu);
  RUN_LOOP(all, run, 1, planes * H * T, T) {
    float sum[RUN];
    EACH_LINE(plane, h, run, H, T) {
      const i64 below = h + ph, line = plane * H + h, t0 = line * T;  // below: lines from the upper edge of the padding
      float* out = dx + line * W - pw;
      for (i64 u = 0; u < sw; ++u) {
        EACH(i, run, t0, t0 + T) sum[i - run.begin] = 0.f;
        for (i64 p = min(below / sh, P - 1); p >= 0 && below - p * sh < R; --p)
          for (i64 s = u, q0 = t0; s < S; s += sw, ++q0) {
            const int tap = (int)((below - p * sh) * S + s);
            const i64 windows = (plane * P + p) * Q;
            EACH(i, run, q0, min(q0 + Q, t0 + T)) {
              const i64 window = windows + i - q0;
              const bool passes = (arg[window] == tap) & !(pooled[window] <= closed);
              sum[i - run.begin] += passes ? dy[window] : 0.f;
            }
          }
        const i64 begin = t0 + steps_below(pw - u, sw, T), end = t0 + steps_below(W + pw - u, sw, T);
        EACH(i, run, begin, end) out[(i - t0) * sw + u] = sum[i - run.begin];
      }
    }
  }
}

extern "C" __global__ void max_pool_byte(const float* __restrict__ x, float* __restrict__ y,
                                         unsigned char* __restrict__ arg, i64 planes, i64 H, i64 W, i64 P, i64 Q, i64 R,
                                         i64 S, i64 sh, i64 sw, i64 ph, i64 pw) {
  pool(x, y, arg, planes, H, W, P, Q, R, S, sh, sw, ph, pw);
}

extern "C" __global__ void max_pool_int(const float* __restrict__ x, float* __restrict__ y, int* __restrict__ arg,
                                        i64 planes, i64 H, i64 W, i64 P, i64 Q, i64 R, i64 S, i64 sh, i64 sw, i64 ph,
                                        i64 pw) {
  pool(x, y, arg, planes, H, W, P, Q, R, S, sh, sw, ph, pw);
}

extern "C" __global__ void max_pool_backward_byte(const float* __restrict__ dy, const unsigned char* __restrict__ arg,
                                                  const float* __restrict__ pooled, float* __restrict__ dx, int relu,
                                                  i64 planes, i64 H, i64 W, i64 P, i64 Q, i64 R, i64 S, i64 sh, i64 sw,
                                                  i64 ph, i64 pw) {
  unpool(dy, arg, pooled, dx, relu, planes, H, W, P, Q, R, S, sh, sw, ph, pw);
}

extern "C" __global__ void max_pool_backward_int(const float* __restrict__ dy, const int* __restrict__ arg,
                                                 const float* __restrict__ pooled, float* __restrict__ dx, int relu,
                                                 i64 planes, i64 H, i64 W, i64 P, i64 Q, i64 R, i64 S, i64 sh, i64 sw,
                                                 i64 ph, i64 pw) {
  unpool(dy, arg, pooled, dx, relu, planes, H, W, P, Q, R, S, sh, sw, ph, pw);
}

// 1 if v cannot be the maximum: it is a number, and there is a greater one or a NaN.
__device__ inline int loses(float v, float most, bool nan) { return (v == v) & ((v != most) | nan); }

// Windows of 2x2, stride 2, no pad: nothing overlaps, so that a window is read and written at once. The four elements of
// the run's windows are set apart first, line by line as memory is read fastest; what follows needs no lines.
extern "C" __global__ WIDE void max_pool_2x2(const float* __restrict__ x, float* __restrict__ y,
                                        unsigned char* __restrict__ arg, i64 planes, i64 H, i64 W, i64 P, i64 Q) {
  RUN_LOOP(all, run, 1, planes * P * Q, Q) {
    float corner[4][RUN];
    EACH_LINE(plane, p, run, P, Q) {
      const i64 q0 = (plane * P + p) * Q;
      for (int r = 0; r < 2; ++r) {
        const float* line = x + (plane * H + 2 * p + r) * W;
        float *left = corner[2 * r], *right = corner[2 * r + 1];
        EACH(i, run, q0, q0 + Q) left[i - run.begin] = line[2 * (i - q0)], right[i - run.begin] = line[2 * (i - q0) + 1];
      }
    }
    float local[RUN], *out = begin_run(y, run, local);
    EACH(i, run, 0, planes * P * Q) {
      const i64 k = i - run.begin;
      const float a = corner[0][k], b = corner[1][k], c = corner[2][k], d = corner[3][k];
      const float ac = c > a ? c : a, bd = d > b ? d : b, most = bd > ac ? bd : ac;
      const bool nan = (a != a) | (b != b) | (c != c) | (d != d);
      const int not_a = loses(a, most, nan), not_b = not_a & loses(b, most, nan), not_c = not_b & loses(c, most, nan);
      out[k] = nan ? NAN : most;
      arg[i] = (unsigned char)(not_a + not_b + not_c);
    }
    end_run(y, run, local);
  }
}

extern "C" __global__ void max_pool_2x2_backward(const float* __restrict__ dy, const unsigned char* __restrict__ arg,
                                                 const float* __restrict__ pooled, float* __restrict__ dx, int relu,
                                                 i64 planes, i64 H, i64 W, i64 P, i64 Q) {
  const float closed = gate(relu);
  const bool past = past_caches(planes * H * W);
  RUN_LOOP(all, run, 1, planes * P * Q, Q) {
    int where[RUN];
    EACH(i, run, 0, planes * P * Q) where[i - run.begin] = pooled[i] <= closed ? -1 : arg[i];
    EACH_LINE(plane, p, run, P, Q) {
      const i64 q0 = (plane * P + p) * Q;
      const i64 first = first_of(run, q0), items = items_of(run, q0, q0 + Q);
      for (int r = 0; r < 2; ++r) {
        float* line = dx + (plane * H + 2 * p + r) * W;
        float local[2 * RUN], *out = begin_part(line + 2 * (first - q0), past, local);
        EACH(i, run, q0, q0 + Q) {
          const int from = where[i - run.begin];
          const float gradient = dy[i];
          out[2 * (i - first)] = from == 2 * r ? gradient : 0.f;
          out[2 * (i - first) + 1] = from == 2 * r + 1 ? gradient : 0.f;
        }
        end_part(line + 2 * (first - q0), past, out, 2 * items);
        if (W % 2) EACH(i, run, q0 + Q - 1, q0 + Q) line[W - 1] = 0.f;
      }
    }
  }
  if (H % 2) ROW_LOOP(plane, w, planes, W) dx[((plane + 1) * H - 1) * W + w] = 0.f;  // no window reaches the last line
}
