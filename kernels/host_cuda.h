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

// Not inline, or the __shared__ variables of two libraries with a kernel of one name would be one (STB_GNU_UNIQUE).
#define __global__ __attribute__((visibility("hidden")))
#define __device__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)

static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
