// CUDA's names for the host compiler: what both host modes share. SPRINT_FAST or SPRINT_SIMT selects the mode.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <algorithm>

using std::max;
using std::min;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

#define __global__ inline __attribute__((always_inline))
#define __device__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)

static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
