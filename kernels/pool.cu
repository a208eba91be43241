// Max-pooling of C*N planes: y(planes,P,Q) from x(planes,H,W), and its gradient.
//
// The first maximum of a window (row by row) takes the gradient; NaN is greater than everything. `arg` is its index inside
// the window: one byte where a window has at most 256 elements. Pad is less than the window, so that every window holds
// an element of x; padding never wins. The gradient is a gather: no atomics, so equal bytes every run.

// A later value takes the place of `best` only if it is greater, or the first NaN.
__device__ inline bool beats(float v, float best) { return !(v <= best) && best == best; }

template <class Index>
__device__ inline void pool(const float* __restrict__ x, float* __restrict__ y, Index* __restrict__ arg, i64 planes, i64 H,
                            i64 W, i64 P, i64 Q, i64 R, i64 S, i64 sh, i64 sw, i64 ph, i64 pw) {
  ROW_LOOP(row, q, planes * P, Q) {
    const i64 h0 = row % P * sh - ph, w0 = q * sw - pw;
    const i64 r_first = h0 < 0 ? -h0 : 0, r_end = min(R, H - h0), s_first = w0 < 0 ? -w0 : 0, s_end = min(S, W - w0);
    const float* corner = x + (row / P * H + h0) * W + w0;
    i64 where = r_first * S + s_first;
    float best = corner[r_first * W + s_first];
    for (i64 r = r_first; r < r_end; ++r)
      for (i64 s = s_first; s < s_end; ++s) {
        const float v = corner[r * W + s];
        if (beats(v, best)) best = v, where = r * S + s;
      }
    y[row * Q + q] = best;
    arg[row * Q + q] = (Index)where;
  }
}

// dx[h,w] = sum of dy of the windows whose maximum is (h,w). With `relu`, only of those whose maximum `pooled` is positive:
// the gradient of a ReLU before the pool in the same pass.
template <class Index>
__device__ inline void unpool(const float* __restrict__ dy, const Index* __restrict__ arg, const float* __restrict__ pooled,
                              float* __restrict__ dx, int relu, i64 planes, i64 H, i64 W, i64 P, i64 Q, i64 R, i64 S,
                              i64 sh, i64 sw, i64 ph, i64 pw) {
  ROW_LOOP(row, w, planes * H, W) {
    const i64 h = row % H + ph, v = w + pw, base = row / H * P * Q;
    const i64 p_first = h < R ? 0 : (h - R) / sh + 1, p_end = min(h / sh + 1, P);
    const i64 q_first = v < S ? 0 : (v - S) / sw + 1, q_end = min(v / sw + 1, Q);
    float sum = 0.f;
    for (i64 p = p_first; p < p_end; ++p)
      for (i64 q = q_first; q < q_end; ++q) {
        const i64 window = base + p * Q + q;
        const bool here = arg[window] == (h - p * sh) * S + v - q * sw;
        if (here && !(relu && pooled[window] <= 0.f)) sum += dy[window];
      }
    dx[row * W + w] = sum;
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

// Windows of 2x2, stride 2, no pad: nothing overlaps and nothing leaves x, so that all bounds fall away.
extern "C" __global__ void max_pool_2x2(const float* __restrict__ x, float* __restrict__ y,
                                        unsigned char* __restrict__ arg, i64 planes, i64 H, i64 W, i64 P, i64 Q) {
  ROW_LOOP(row, q, planes * P, Q) {
    const float* line = x + (row / P * H + row % P * 2) * W;
    const float b = line[2 * q + 1], c = line[W + 2 * q], d = line[W + 2 * q + 1];
    float best = line[2 * q];
    int where = 0;
    where = beats(b, best) ? 1 : where, best = beats(b, best) ? b : best;
    where = beats(c, best) ? 2 : where, best = beats(c, best) ? c : best;
    where = beats(d, best) ? 3 : where, best = beats(d, best) ? d : best;
    y[row * Q + q] = best;
    arg[row * Q + q] = (unsigned char)where;
  }
}
