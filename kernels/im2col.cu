// Columns of a convolution: col(C*R*S, N*P*Q) from x(C,N,H,W), and its transpose, the gather that sums columns into dx.
// A call works on the images first .. first+count-1 of x, so that a limited workspace can hold part of a sub-batch.

extern "C" __global__ void im2col(const float* __restrict__ x, float* __restrict__ col, i64 C, i64 N, i64 H, i64 W, i64 R,
                                  i64 S, i64 P, i64 Q, i64 sh, i64 sw, i64 ph, i64 pw, i64 first, i64 count) {
  const bool inside_always = pw == 0;  // Q is such that without padding no column leaves x
  ROW_LOOP(row, q, C * R * S * count * P, Q) {
    const i64 p = row % P, n = row / P % count, tap = row / P / count;
    const i64 s = tap % S, r = tap / S % R, c = tap / S / R;
    const i64 h = p * sh - ph + r, w0 = s - pw;
    const float* line = x + ((c * N + first + n) * H + h) * W + w0;
    float* out = col + row * Q;
    if (h < 0 || h >= H)
      out[q] = 0.f;
    else if (inside_always)
      out[q] = sw == 1 ? line[q] : line[q * sw];
    else
      out[q] = w0 + q * sw >= 0 && w0 + q * sw < W ? line[q * sw] : 0.f;
  }
}

// dx[c,n,h,w] = sum over the taps (r,s) whose output position (p,q) is whole and inside. A gather: no atomics, so equal
// bytes every run.
extern "C" __global__ void col2im(const float* __restrict__ col, float* __restrict__ dx, i64 C, i64 N, i64 H, i64 W, i64 R,
                                  i64 S, i64 P, i64 Q, i64 sh, i64 sw, i64 ph, i64 pw, i64 first, i64 count) {
  ROW_LOOP(row, w, C * count * H, W) {
    const i64 h = row % H, n = row / H % count, c = row / H / count;
    float sum = 0.f;
    for (i64 r = 0; r < R; ++r) {
      const i64 ps = h + ph - r;
      if (ps < 0 || ps % sh != 0 || ps / sh >= P) continue;
      for (i64 s = 0; s < S; ++s) {
        const i64 qs = w + pw - s;
        if (qs < 0 || qs % sw != 0 || qs / sw >= Q) continue;
        sum += col[((((c * R + r) * S + s) * count + n) * P + ps / sh) * Q + qs / sw];
      }
    }
    dx[((c * N + first + n) * H + h) * W + w] = sum;
  }
}
