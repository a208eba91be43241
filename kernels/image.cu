// Images: uint8 (N,H,W,C) as files hold them, to float32 (C,N,H,W) as the kernels want them.
// Values are in units of 0..1: x = (u / 255 - mean[c]) / std[c].

#define UNIT (1.f / 255.f)

extern "C" __global__ void to_float(const unsigned char* __restrict__ images, float* __restrict__ x, i64 C, i64 N, i64 H,
                                    i64 W) {
  ROW_LOOP(row, i, C * N, H * W) {
    const i64 n = row % N, c = row / N;
    x[row * H * W + i] = images[(n * H * W + i) * C + c] * UNIT;
  }
}

extern "C" __global__ void normalize(const unsigned char* __restrict__ images, const float* __restrict__ mean,
                                     const float* __restrict__ std, float* __restrict__ x, i64 C, i64 N, i64 H, i64 W) {
  ROW_LOOP(row, i, C * N, H * W) {
    const i64 n = row % N, c = row / N;
    const float shift = mean[c], factor = 1.f / std[c];
    x[row * H * W + i] = (images[(n * H * W + i) * C + c] * UNIT - shift) * factor;
  }
}

__device__ inline i64 clamp(i64 i, i64 last) { return i < 0 ? 0 : i > last ? last : i; }

// corners (N,2): top and left of the part of each image that is kept; outside the image its border is repeated.
extern "C" __global__ void crop(const unsigned char* __restrict__ images, const int* __restrict__ corners,
                                unsigned char* __restrict__ out, i64 N, i64 H, i64 W, i64 C, i64 P, i64 Q) {
  ROW_LOOP(row, q, N * P, Q) {
    const i64 p = row % P, n = row / P;
    const i64 h = clamp(corners[2 * n] + p, H - 1), w = clamp(corners[2 * n + 1] + q, W - 1);
    const unsigned char* pixel = images + ((n * H + h) * W + w) * C;
    for (i64 c = 0; c < C; ++c) out[(row * Q + q) * C + c] = pixel[c];
  }
}

// Left and right change places in the images whose flag is not 0.
extern "C" __global__ void mirror(const unsigned char* __restrict__ images, const unsigned char* __restrict__ flags,
                                  unsigned char* __restrict__ out, i64 N, i64 H, i64 W, i64 C) {
  ROW_LOOP(row, w, N * H, W) {
    const unsigned char* pixel = images + (row * W + (flags[row / H] ? W - 1 - w : w)) * C;
    for (i64 c = 0; c < C; ++c) out[(row * W + w) * C + c] = pixel[c];
  }
}

// Where a coordinate falls between pixel `low` and pixel `high`; outside 0..last it is the border (NaN: the first pixel).
struct Between {
  i64 low, high;
  float part;
};
__device__ inline Between between(float v, i64 last) {
  const float inside = v > 0.f ? (v < (float)last ? v : (float)last) : 0.f;
  const i64 low = clamp((i64)inside, last);
  return {low, low < last ? low + 1 : last, inside - (float)low};
}

// Warp, bilinear sampling and normalisation in one pass. affine (N,6) = a b c d e f takes the output pixel (p,q) to the
// input position w = a q + b p + c, h = d q + e p + f, in pixels, the centre of the first pixel being 0.
extern "C" __global__ void deform(const unsigned char* __restrict__ images, const float* __restrict__ affine,
                                  const float* __restrict__ mean, const float* __restrict__ std, float* __restrict__ x,
                                  i64 C, i64 N, i64 H, i64 W, i64 P, i64 Q) {
  ROW_LOOP(row, q, N * P, Q) {
    const i64 p = row % P, n = row / P;
    const float* a = affine + 6 * n;
    const Between w = between(a[0] * q + a[1] * p + a[2], W - 1), h = between(a[3] * q + a[4] * p + a[5], H - 1);
    const unsigned char* image = images + n * H * W * C;
    const unsigned char *top = image + h.low * W * C, *bottom = image + h.high * W * C;
    for (i64 c = 0; c < C; ++c) {
      const i64 left = w.low * C + c, right = w.high * C + c;
      const float above = top[left] + w.part * ((float)top[right] - top[left]);
      const float below = bottom[left] + w.part * ((float)bottom[right] - bottom[left]);
      x[((c * N + n) * P + p) * Q + q] = ((above + h.part * (below - above)) * UNIT - mean[c]) / std[c];
    }
  }
}
