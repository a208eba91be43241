// Convolution as three matrix products whose column matrix is never stored (implicit GEMM), by the tiles of tile.cuh:
//
//   forward           y(K, N*P*Q)  = w(K, C*R*S)     times the columns of x
//   gradient to x     dx(C, N*H*W) = w^T(C, K*R*S)   times the columns of dy
//   gradient to w     dw(K, C*R*S) = dy(K, N*P*Q)    times the transposed columns of x
//
// A column is a position of the image and a row of the column matrix is a tap: a channel and a place (r, s) in the filter.
// Each thread keeps the positions that it fetches and counts the taps (or the other way round), so no division stands in
// a loop. Every element of a result is one sum in a fixed order: no atomics, equal bytes every run.
#include "tile.cuh"

typedef Tile<128, 128, 8, 8> Tile128;  // by the number of rows that a product has
typedef Tile<64, 128, 8, 4> Tile64;
typedef Tile<32, 256, 8, 4> Tile32;

struct Shape {
  int C, N, H, W, K, R, S, P, Q, sh, sw, ph, pw;
};

// Where pixels go: (h, w) + (sh, sw) * (p, q) of an image H x W.
struct Image {
  int H, W, h, w, sh, sw;
};

// The digits of (high * middle_size + middle) * low_size + low.
struct Digits {
  int high, middle, low;
};
__device__ inline Digits digits(unsigned value, unsigned middle_size, unsigned low_size) {
  const unsigned rest = value / low_size;
  return {(int)(rest / middle_size), (int)(rest % middle_size), (int)(value % low_size)};
}

// A pointer or an offset that follows such a number when it counts up by DEPTH, without division: taps (c, r, s), positions
// (n, p, q). `step` and the wraps are the elements to go on; they and the digits of DEPTH come from the host.
template <class Step>
struct Steps {
  int middle_size, low_size, middle, low;
  Step step, low_wrap, middle_wrap;
};
template <class At>
struct Walk {
  At at;
  int middle, low;
};
template <class At, class Step>
__device__ inline void advance(Walk<At>& walk, Steps<Step> steps) {
  walk.low += steps.low;
  walk.middle += steps.middle;
  walk.at += steps.step;
  if (walk.low >= steps.low_size) walk.low -= steps.low_size, ++walk.middle, walk.at += steps.low_wrap;
  if (walk.middle >= steps.middle_size) walk.middle -= steps.middle_size, walk.at += steps.middle_wrap;
}

// A place in the images: its offset within a channel, and (h, w) in one word, which the (r, s) of a tap is added to.
// Extents are below 2^14: where a coordinate, or what is left of the extent behind it, is negative, bit 31 or 15 tells.
struct Place {
  int offset;
  unsigned at;
};
constexpr unsigned OUTSIDE = 0x40000000u;  // with whatever is added to it
__device__ inline unsigned word(int h, int w) { return (unsigned)(h * 65536 + w); }
__device__ inline bool inside(unsigned at, unsigned last) { return ((at | (last - at)) & 0x80008000u) == 0; }

// ---- forward, and gradient to x ---------------------------------------------------------------------------------------

template <class T>
__device__ inline void convolve_tile(float* shared, const float* x, const float* w, const float* b, float* y, Shape g,
                                     Image out, int depth, i64 image, i64 channel, Steps<i64> taps, int bias, int relu) {
  const int row0 = blockIdx.y * T::M, column0 = blockIdx.x * T::N, columns = g.N * g.P * g.Q;
  const Fetch at_w = fetch(true), at_x = fetch(false);
  Place place[T::B];
#pragma unroll
  for (int i = 0; i < T::B; ++i) {
    const int column = column0 + at_x.row + i * LANES;
    const Digits d = digits(min(column, columns - 1), g.P, g.Q);
    const int h = d.middle * g.sh - g.ph, w = d.low * g.sw - g.pw;
    place[i] = {(d.high * g.H + h) * g.W + w, column < columns ? word(h, w) : OUTSIDE};
  }
  Strip filters = strip({w, g.K, depth, 1}, at_w, row0);
  const Digits first = digits(at_x.k, taps.middle_size, taps.low_size);  // (c, r, s)
  Walk<const float*> tap = {x + first.high * image + first.middle * g.W + first.low, first.middle, first.low};
  const unsigned last = word(g.H - 1, g.W - 1);
  float sum[T::TM][T::TN] = {};
  multiply<T>(
      shared, sum, depth, at_w, [&](float(&out)[T::A], int left) { load(filters, out, left); }, at_x,
      [&](float(&out)[T::B], int left) {
        const unsigned at = at_x.k < left ? word(tap.middle, tap.low) : OUTSIDE;
#pragma unroll
        for (int i = 0; i < T::B; ++i) out[i] = inside(place[i].at + at, last) ? tap.at[place[i].offset] : 0.f;
        advance(tap, taps);
      });
  const float floor = relu ? 0.f : -INFINITY;
  float add[T::TM];
#pragma unroll
  for (int i = 0; i < T::TM; ++i) add[i] = bias && row0 + tile_row<T>(i) < g.K ? b[row0 + tile_row<T>(i)] : 0.f;
  const auto value = [&](float s, int i, const float*) {
    const float v = s + add[i];
    return v <= floor ? floor : v;  // NaN stays NaN
  };
  if (out.H == g.P && out.W == g.Q) {
    write<T>(sum, y + row0 * channel + column0, channel, g.K - row0, columns - column0, value);
    return;
  }
#pragma unroll
  for (int j = 0; j < T::TN; ++j) {
    const int column = column0 + tile_column<T>(j);
    if (column >= columns) continue;
    const Digits d = digits(column, g.P, g.Q);
    float* to = y + row0 * channel + ((i64)d.high * out.H + out.h + d.middle * out.sh) * out.W + out.w + d.low * out.sw;
#pragma unroll
    for (int i = 0; i < T::TM; ++i)
      if (row0 + tile_row<T>(i) < g.K) to[tile_row<T>(i) * channel] = value(sum[i][j], i, to);
  }
}

// y(K,N,P,Q) = w(K,C,R,S) * x(C,N,H,W), plus b(K) if `bias`, and max(y, 0) if `relu`. Pixel (p, q) goes to
// (oh + osh * p, ow + osw * q) of an image OH x OW. Block (column, row) of the grid makes a tile of `rows` rows.
extern "C" __global__ void __launch_bounds__(256, 2)
convolve(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b, float* __restrict__ y,
         int C, int N, int H, int W, int K, int R, int S, int P, int Q, int sh, int sw, int ph, int pw, int OH, int OW,
         int oh, int ow, int osh, int osw, int depth, i64 image, i64 channel, int step_r, int step_s, i64 step, i64 wrap_s,
         i64 wrap_r, int bias, int relu, int rows) {
  alignas(16) __shared__ float shared[Tile32::SHARED];
  const Shape g = {C, N, H, W, K, R, S, P, Q, sh, sw, ph, pw};
  const Image out = {OH, OW, oh, ow, osh, osw};
  const Steps<i64> taps = {R, S, step_r, step_s, step, wrap_s, wrap_r};
  if (rows == 128)
    convolve_tile<Tile128>(shared, x, w, b, y, g, out, depth, image, channel, taps, bias, relu);
  else if (rows == 64)
    convolve_tile<Tile64>(shared, x, w, b, y, g, out, depth, image, channel, taps, bias, relu);
  else
    convolve_tile<Tile32>(shared, x, w, b, y, g, out, depth, image, channel, taps, bias, relu);
}

// turned: by phase (plan_phases in conv_tiles.py; in the order of r0, s0) the taps of w(K,C,R,S), as (C, K, taps, taps)
// with the last tap first.
extern "C" __global__ void turn_filters(const float* __restrict__ w, float* __restrict__ turned, i64 K, i64 C, i64 R, i64 S,
                                        i64 sh, i64 sw) {
  ROW_LOOP(row, s, K * C * R, S) {
    const i64 r = row % R, c = row / R % C, k = row / R / C, r0 = r % sh, s0 = s % sw;
    const i64 taps_h = (R - r0 + sh - 1) / sh, taps_w = (S - s0 + sw - 1) / sw;
    const i64 before = (R / sh * r0 + min(R % sh, r0)) * S + taps_h * (S / sw * s0 + min(S % sw, s0));
    turned[C * K * before + ((c * K + k) * taps_h + taps_h - 1 - r / sh) * taps_w + taps_w - 1 - s / sw] = w[row * S + s];
  }
}

// ---- gradient to w ----------------------------------------------------------------------------------------------------

template <class T>
__device__ inline void backward_filter(float* shared, const float* x, const float* dy, float* dw, Shape g, int columns,
                                       int image, int depth, Steps<int> steps, int share) {
  const int row0 = blockIdx.y * T::M, column0 = blockIdx.x * T::N, begin = blockIdx.z * share;
  const Fetch at = fetch(true);
  const int channel0 = column0 / (g.R * g.S);
  Place place[T::B];
#pragma unroll
  for (int i = 0; i < T::B; ++i) {
    const int column = column0 + at.row + i * LANES;
    const Digits d = digits(column, g.R, g.S);  // (c, r, s)
    const int h = d.middle - g.ph, w = d.low - g.pw;
    place[i] = {(d.high - channel0) * image + h * g.W + w, column < columns ? word(h, w) : OUTSIDE};
  }
  Strip gradient = strip({dy + begin, g.K, depth, 1}, at, row0);
  const Digits first = digits(begin + at.k, g.P, g.Q);  // (n, p, q)
  Walk<int> position = {(first.high * g.H + first.middle * g.sh) * g.W + first.low * g.sw, first.middle, first.low};
  const float* from = x + (i64)channel0 * image;
  const unsigned last = word(g.H - 1, g.W - 1);
  float sum[T::TM][T::TN] = {};
  multiply<T>(
      shared, sum, min(share, depth - begin), at,
      [&](float(&out)[T::A], int left) { load(gradient, out, left); }, at,
      [&](float(&out)[T::B], int left) {
        const unsigned here = at.k < left ? word(position.middle * g.sh, position.low * g.sw) : OUTSIDE;
#pragma unroll
        for (int i = 0; i < T::B; ++i) out[i] = inside(place[i].at + here, last) ? from[position.at + place[i].offset] : 0.f;
        advance(position, steps);
      });
  write<T>(sum, dw + ((i64)blockIdx.z * g.K + row0) * columns + column0, columns, g.K - row0, columns - column0,
           [](float s, int, const float*) { return s; });
}

// parts(count, K, C*R*S): block (column, row, i) of the grid sums the N*P*Q positions from i * share on, `share` of them.
extern "C" __global__ void __launch_bounds__(256, 2)
conv_backward_filter(const float* __restrict__ x, const float* __restrict__ dy, float* __restrict__ parts, int C, int N,
                     int H, int W, int K, int R, int S, int P, int Q, int sh, int sw, int ph, int pw, int columns,
                     int image, int depth, int step_p, int step_q, int step, int wrap_q, int wrap_p, int share, int rows) {
  alignas(16) __shared__ float shared[Tile32::SHARED];
  const Shape g = {C, N, H, W, K, R, S, P, Q, sh, sw, ph, pw};
  const Steps<int> steps = {P, Q, step_p, step_q, step, wrap_q, wrap_p};
  if (rows == 128)
    backward_filter<Tile128>(shared, x, dy, parts, g, columns, image, depth, steps, share);
  else if (rows == 64)
    backward_filter<Tile64>(shared, x, dy, parts, g, columns, image, depth, steps, share);
  else
    backward_filter<Tile32>(shared, x, dy, parts, g, columns, image, depth, steps, share);
}

// dw[i] = the sum of parts[0..count-1][i], in this order.
extern "C" __global__ void sum_parts(const float* __restrict__ parts, float* __restrict__ dw, i64 count, i64 size) {
  GRID_STRIDE_LOOP(i, size) {
    float sum = parts[i];
    for (i64 part = 1; part < count; ++part) sum += parts[part * size + i];
    dw[i] = sum;
  }
}
