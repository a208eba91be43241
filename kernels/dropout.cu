// Dropout whose mask is a function of (seed, offset, element): forward and backward draw it again, nothing is stored.
// The generator is Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

struct Random4 {
  unsigned word[4];
};

// Unrolled by the compiler, so that the host makes vectors of the loop over groups.
template <int rounds>
__device__ inline Random4 philox(Random4 c, unsigned key0, unsigned key1) {
  const unsigned high0 = __umulhi(0xD2511F53u, c.word[0]), low0 = 0xD2511F53u * c.word[0];
  const unsigned high1 = __umulhi(0xCD9E8D57u, c.word[2]), low1 = 0xCD9E8D57u * c.word[2];
  const Random4 next = {{high1 ^ c.word[1] ^ key0, low1, high0 ^ c.word[3] ^ key1, low0}};
  if constexpr (rounds == 1)
    return next;
  else
    return philox<rounds - 1>(next, key0 + 0x9E3779B9u, key1 + 0xBB67AE85u);
}

// The counter is (group, offset): groups of four elements below, the caller's offset above, so that no two offsets share
// a number. The key is the seed.
__device__ inline Random4 draw(i64 group, i64 offset, i64 key) {
  return philox<10>({{(unsigned)group, (unsigned)(group >> 32), (unsigned)offset, (unsigned)(offset >> 32)}}, (unsigned)key,
                (unsigned)(key >> 32));
}

// y = x * factor where the element's number reaches threshold = rate * 2^32, else 0. The gradient is the same kernel.
extern "C" __global__ void dropout(const float* x, float* y, i64 key, i64 offset, unsigned threshold, float factor, i64 n) {
  const i64 groups = n / 4;
  GRID_STRIDE_LOOP(g, groups) {
    const Random4 random = draw(g, offset, key);
    for (int k = 0; k < 4; ++k) {
      const float kept = x[4 * g + k] * factor;
      y[4 * g + k] = random.word[k] >= threshold ? kept : 0.f;
    }
  }
  GRID_STRIDE_LOOP(k, n - 4 * groups) {
    const i64 i = 4 * groups + k;
    y[i] = draw(groups, offset, key).word[k] >= threshold ? x[i] * factor : 0.f;
  }
}
