// The register tile of the host's GEMM and convolution, and the block sizes and packing that feed it.
// Everything is c(M, 32) += a(M, kc) b(kc, 32) on packed panels; widths follow the processor, the code does not.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <omp.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

typedef int64_t i64;

enum { BAD_ARGUMENT = 1 };

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, WIDE = 2, MR = 14;  // 28 accumulators, 2 of b, 1 of a: 31 of 32 registers
#elif defined(__AVX2__)
constexpr int LANES = 8, WIDE = 2, MR = 6;    // 12 + 2 + 1 of 16
#elif defined(__ARM_NEON)
constexpr int LANES = 4, WIDE = 3, MR = 8;    // 24 + 3 + 2 of 32
#else
constexpr int LANES = 4, WIDE = 2, MR = 4;
#endif
constexpr int NR = LANES * WIDE;                        // columns of a panel of b
constexpr int MP = (MR + LANES - 1) / LANES * LANES;    // row of a column-major panel of a
constexpr int KC = 384;                                 // depth of a block: an a panel (MR, KC) stays in L1
constexpr int LDA = KC + 16;                            // row of a row-major panel of a; an odd number of cache lines
constexpr i64 LINE = 64;                                // bytes of a cache line
constexpr i64 L2_FLOATS = 96 * 1024;                    // packed b of one strip: 384 KiB

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));

inline vec load(const float* p) { return *(const vec*)p; }
inline void store(float* p, vec v) { *(vec*)p = v; }
inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
inline i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }
inline i64 even_split(i64 total, i64 most) { return total ? ceil_div(total, ceil_div(total, most)) : 0; }

// Where a tile goes: c = sum + beta * add + bias, then ReLU that lets NaN through. Absent parts are null.
struct Target {
  float* c;
  i64 ldc;
  int columns;  // 1..NR of them are written
  const float* add = nullptr;
  i64 ld_add = 0;
  float beta = 1;
  const float* bias = nullptr;
  bool relu = false;
};

// The same for a tile that is narrower than its registers: sum (rows, ld) from memory.
__attribute__((noinline)) void write_part(const float* sum, int ld, int rows, const Target& t) {
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < t.columns; ++j) {
      float v = sum[i * ld + j];
      if (t.add) v += t.beta * t.add[i * t.ld_add + j];
      if (t.bias) v += t.bias[i];
      t.c[i * t.ldc + j] = t.relu && v < 0 ? 0 : v;
    }
}

template <int M, int W>
inline void write(const vec (&sum)[M][W], const Target& t) {
  if (t.columns < W * LANES) {
    float part[M * W * LANES];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < W; ++j) store(part + (i * W + j) * LANES, sum[i][j]);
    return write_part(part, W * LANES, M, t);
  }
  const vec beta = t.beta - vec{};
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < W; ++j) {
      vec v = sum[i][j];
      if (t.add) v += beta * load(t.add + i * t.ld_add + j * LANES);
      if (t.bias) v += t.bias[i] - vec{};
      if (t.relu) v = v < 0 ? vec{} : v;
      store(t.c + i * t.ldc + j * LANES, v);
    }
}

// a(i, k) lies at a[i * ROW + k * COL]; b is a panel of rows of NR floats.
template <int M, int W, int ROW, int COL>
void tile(i64 kc, const float* __restrict a, const float* __restrict b, const Target& target) {
  vec sum[M][W];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < W; ++j) sum[i][j] = vec{};
#pragma GCC unroll 2
  for (i64 k = 0; k < kc; ++k) {
    vec bk[W];
    for (int j = 0; j < W; ++j) bk[j] = load(b + k * NR + j * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      vec ai = a[i * ROW + k * COL] - vec{};
      for (int j = 0; j < W; ++j) sum[i][j] += ai * bk[j];
    }
  }
  write(sum, target);
}

typedef void (*Tile)(i64, const float*, const float*, const Target&);

template <int ROW, int COL>
struct Tiles {
  template <int M>
  static Tile choose(int rows, int wide) {
    if constexpr (M > 1)
      if (rows < M) return choose<M - 1>(rows, wide);
    if constexpr (WIDE > 2)
      if (wide == 2) return tile<M, 2, ROW, COL>;
    return wide == 1 ? tile<M, 1, ROW, COL> : tile<M, WIDE, ROW, COL>;
  }
  static void run(int rows, i64 kc, const float* a, const float* b, const Target& t) {
    choose<MR>(rows, (t.columns + LANES - 1) / LANES)(kc, a, b, t);
  }
};
typedef Tiles<LDA, 1> RowTiles;  // a packed (MR, LDA): rows copied
typedef Tiles<1, MP> ColTiles;   // a packed (kc, MP): columns copied

constexpr uint32_t ALL_LANES = (1u << LANES) - 1;

// The lanes of `mask` of p, the others untouched or from `otherwise`. Lanes left out are not accessed; AddressSanitizer
// sees only plain loads, so it gets those.
#if defined(__AVX512F__) && !defined(__SANITIZE_ADDRESS__)
inline vec masked_load(const float* p, uint32_t mask, vec otherwise) {
  return (vec)_mm512_mask_loadu_ps((__m512)otherwise, (__mmask16)mask, p);
}
inline void masked_store(float* p, uint32_t mask, vec v) { _mm512_mask_storeu_ps(p, (__mmask16)mask, (__m512)v); }
#elif defined(__AVX2__) && !defined(__AVX512F__) && !defined(__SANITIZE_ADDRESS__)
inline __m256i lanes_of(uint32_t mask) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)mask), bit), bit);
}
inline vec masked_load(const float* p, uint32_t mask, vec otherwise) {
  const __m256i lanes = lanes_of(mask);
  return (vec)_mm256_blendv_ps((__m256)otherwise, _mm256_maskload_ps(p, lanes), (__m256)lanes);
}
inline void masked_store(float* p, uint32_t mask, vec v) { _mm256_maskstore_ps(p, lanes_of(mask), (__m256)v); }
#else
inline vec masked_load(const float* p, uint32_t mask, vec otherwise) {
  for (int e = 0; e < LANES; ++e)
    if (mask >> e & 1) otherwise[e] = p[e];
  return otherwise;
}
inline void masked_store(float* p, uint32_t mask, vec v) {
  for (int e = 0; e < LANES; ++e)
    if (mask >> e & 1) p[e] = v[e];
}
#endif

// dst(0..count-1) = scale * src. Vectors when scale is 1 come from memcpy.
inline void copy(float* dst, const float* src, i64 count, float scale = 1) {
  if (scale == 1) std::memcpy(dst, src, count * sizeof(float));
  else for (i64 i = 0; i < count; ++i) dst[i] = scale * src[i];
}

// Lanes that the butterfly of `transpose_square` takes from its two inputs at each step.
struct Butterfly {
  alignas(64) int32_t low[4][LANES], high[4][LANES];
  constexpr Butterfly() : low(), high() {
    for (int level = 0, step = 1; step < LANES; ++level, step *= 2)
      for (int e = 0; e < LANES; ++e) {
        low[level][e] = e & step ? LANES + e - step : e;
        high[level][e] = e & step ? LANES + e : e + step;
      }
  }
};
constexpr Butterfly BUTTERFLY;

// A square of LANES rows and columns turned over: dst[j][i] = src[i][j].
inline void transpose_square(const float* src, i64 ld_src, float* dst, i64 ld_dst) {
  vec v[LANES];
  for (int i = 0; i < LANES; ++i) v[i] = load(src + i * ld_src);
#pragma GCC unroll 4
  for (int level = 0; 1 << level < LANES; ++level) {
    const int step = 1 << level;
    const ivec low = *(const ivec*)BUTTERFLY.low[level], high = *(const ivec*)BUTTERFLY.high[level];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i)
      if (!(i & step)) {
        const vec a = v[i], b = v[i + step];
        v[i] = __builtin_shuffle(a, b, low);
        v[i + step] = __builtin_shuffle(a, b, high);
      }
  }
  for (int i = 0; i < LANES; ++i) store(dst + i * ld_dst, v[i]);
}

// dst(columns, ld_dst) = scale * transpose of src(rows, ld_src).
inline void transpose(const float* src, i64 ld_src, i64 rows, i64 columns, float* dst, i64 ld_dst, float scale = 1) {
  i64 whole_rows = scale == 1 ? rows / LANES * LANES : 0, whole = columns / LANES * LANES;
  for (i64 i = 0; i < whole_rows; i += LANES)
    for (i64 j = 0; j < whole; j += LANES) transpose_square(src + i * ld_src + j, ld_src, dst + j * ld_dst + i, ld_dst);
  for (i64 i = 0; i < rows; ++i)
    for (i64 j = i < whole_rows ? whole : 0; j < columns; ++j) dst[j * ld_dst + i] = scale * src[i * ld_src + j];
}

// Carves aligned pieces from the caller's workspace; from null it only counts. AddressSanitizer sees the gaps between.
struct Arena {
  uintptr_t base, used = 0;
  explicit Arena(char* memory) : base((uintptr_t)memory) {}
  template <class T>
  T* take(i64 count) {
    const uintptr_t piece = base + used, bytes = count * sizeof(T);
    used += round_up(bytes, LINE);
#if defined(__SANITIZE_ADDRESS__)
    used += LINE;
    if (base) __asan_unpoison_memory_region((void*)piece, bytes);
    if (base) __asan_poison_memory_region((void*)(piece + bytes), base + used - piece - bytes);
#endif
    return (T*)piece;
  }
};

inline char* aligned(void* memory) { return (char*)round_up((i64)memory, LINE); }

// Bytes of the pieces that Scratch(arena, blocks) takes for one thread, and the pieces of the calling thread.
template <class Scratch, class Blocks>
i64 scratch_bytes(const Blocks& blocks) {
  Arena arena(nullptr);
  Scratch pieces(arena, blocks);
  return (i64)arena.used + LINE;
}

template <class Scratch, class Blocks>
Scratch thread_scratch(void* workspace, const Blocks& blocks) {
  Arena arena(aligned((char*)workspace + omp_get_thread_num() * scratch_bytes<Scratch>(blocks)));
  return Scratch(arena, blocks);
}

}  // namespace
