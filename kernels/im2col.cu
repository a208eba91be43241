// Columns of a convolution: col(C*R*S, N*P*Q) from x(C,N,H,W), and its transpose, the gather that sums columns into dx.
// A call works on the images first .. first+count-1 of x, so that a limited workspace can hold part of a sub-batch.

// A line of columns is a line of x seen through one tap (r,s): zeros where it is left of x, the line, zeros right of x.
extern "C" __global__ void im2col(const float* __restrict__ x, float* __restrict__ col, i64 C, i64 N, i64 H, i64 W, i64 R,
                                  i64 S, i64 P, i64 Q, i64 sh, i64 sw, i64 ph, i64 pw, i64 first, i64 count) {
  RUN_LOOP(row, run, C * R * S, count * P * Q, 16) {  // 16: a cache line of col
    const i64 s = row % S, r = row / S % R, c = row / S / R;
    const i64 left = steps_below(pw - s, sw, Q), right = steps_below(W + pw - s, sw, Q);
    float local[RUN], *out = begin_run(col + row * count * P * Q, run, local);
    EACH_LINE(n, p, run, P, Q) {
      const i64 h = p * sh - ph + r, q0 = (n * P + p) * Q;
      const bool inside = h >= 0 && h < H;
      const i64 begin = q0 + (inside ? left : Q), end = q0 + (inside ? right : Q);
      const float* seen = x + ((c * N + first + n) * H + h) * W + s - pw;
      EACH(i, run, q0, begin) out[i - run.begin] = 0.f;
      if (sw == 1)
        EACH(i, run, begin, end) out[i - run.begin] = seen[i - q0];
      else if (sw == 2)
        EACH(i, run, begin, end) out[i - run.begin] = seen[2 * (i - q0)];
      else
        EACH(i, run, begin, end) out[i - run.begin] = seen[(i - q0) * sw];
      EACH(i, run, end, q0 + Q) out[i - run.begin] = 0.f;
    }
    end_run(col + row * count * P * Q, run, local);
  }
}

// dx[h,w] = sum over the taps (r,s) that saw it, in fixed order: no atomics, so equal bytes every run. Item t of a line
// stands for the sw elements w = t*sw + u - pw; equal u are seen by the same taps s = u, u+sw, ... at q = t, t-1, ...
extern "C" __global__ void col2im(const float* __restrict__ col, float* __restrict__ dx, i64 C, i64 N, i64 H, i64 W, i64 R,
                                  i64 S, i64 P, i64 Q, i64 sh, i64 sw, i64 ph, i64 pw, i64 first, i64 count) {
  const i64 T = (W + pw - 1) / sw + 1;
  RUN_LOOP(c, run, C, count * H * T, T) {
    EACH_LINE(n, h, run, H, T) {
      const i64 below = h + ph, t0 = (n * H + h) * T;  // below: lines from the upper edge of the padding
      float* out = dx + ((c * N + first + n) * H + h) * W - pw;
      for (i64 u = 0; u < sw; ++u) {
        float sum[RUN];
        EACH(i, run, t0, t0 + T) sum[i - run.begin] = 0.f;
        for (i64 p = min(below / sh, P - 1); p >= 0 && below - p * sh < R; --p)
          for (i64 s = u, q0 = t0; s < S; s += sw, ++q0) {
            const float* seen = col + ((((c * R + below - p * sh) * S + s) * count + n) * P + p) * Q;
            EACH(i, run, q0, min(q0 + Q, t0 + T)) sum[i - run.begin] += seen[i - q0];
          }
        const i64 begin = t0 + steps_below(pw - u, sw, T), end = t0 + steps_below(W + pw - u, sw, T);
        if (sw == 1)
          EACH(i, run, begin, end) out[i - t0] = sum[i - run.begin];
        else
          EACH(i, run, begin, end) out[(i - t0) * sw + u] = sum[i - run.begin];
      }
    }
  }
}
