// Host, simt mode: true CUDA semantics for tests. Every thread of a block is a fiber; __syncthreads, shuffles and votes
// really wait; the order in which fibers (and blocks) run is forward, reverse or shuffled by a seed, so that a missing
// barrier or a race changes the result. Shared memory is filled with NaN before each block. Array arguments run inside
// guarded copies, so that a write outside them is found (with AddressSanitizer also a read).
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <random>
#include <ucontext.h>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define __shared__ static __attribute__((section("sprint_shared")))
extern char __start_sprint_shared[] __attribute__((weak)), __stop_sprint_shared[] __attribute__((weak));

namespace simt {

enum State { READY, AT_BARRIER, AT_WARP, DONE };
constexpr size_t STACK_BYTES = 128 << 10;
constexpr int WARP = 32;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(STACK_BYTES);
  dim3 index;
  unsigned lane, warp, mask, collectives;
  State state;
  void* fake_stack;
};

static std::mutex device_mutex;  // one launch at a time: the state below is the device's
static std::vector<Fiber> fibers;
static std::vector<uint64_t> exchange;  // [warp][parity][lane]
static Fiber* current;
static ucontext_t scheduler;
static void* scheduler_fake_stack;
static const void* scheduler_stack;
static size_t scheduler_stack_bytes;
static dim3 block_index, block_dim, grid_dim;
static void (*body)(void*);
static void* arguments;

static void switch_to_scheduler(bool last) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &current->fake_stack, scheduler_stack, scheduler_stack_bytes);
#endif
  Fiber* self = current;
  swapcontext(&self->context, &scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self->fake_stack, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

static void wait(State state) {
  current->state = state;
  switch_to_scheduler(false);
}

static void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
  body(arguments);
  current->state = DONE;
  switch_to_scheduler(true);
}

static void resume(Fiber& fiber) {
  current = &fiber;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, fiber.stack.data(), STACK_BYTES);
#endif
  swapcontext(&scheduler, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
}

static void start(Fiber& fiber, unsigned linear) {
  fiber.index = {linear % block_dim.x, linear / block_dim.x % block_dim.y, linear / block_dim.x / block_dim.y};
  fiber.lane = linear % WARP;
  fiber.warp = linear / WARP;
  fiber.collectives = 0;
  fiber.state = READY;
  fiber.fake_stack = nullptr;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = STACK_BYTES;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, fiber_main, 0);
}

// A warp operation is complete when every lane of its mask that has not exited waits in it.
static bool warp_complete(const Fiber& waiting) {
  const size_t first = (size_t)waiting.warp * WARP;
  for (size_t i = first; i < std::min(first + WARP, fibers.size()); ++i) {
    const Fiber& other = fibers[i];
    if (!(waiting.mask >> other.lane & 1) || other.state == DONE) continue;
    if (other.state != AT_WARP || other.mask != waiting.mask || other.collectives != waiting.collectives) return false;
  }
  return true;
}

// Lets waiting fibers go on; false: nobody can (all done, or a deadlock).
static bool release() {
  bool any = false, all_at_barrier = true;
  std::vector<size_t> complete;
  for (size_t i = 0; i < fibers.size(); ++i) {
    any |= fibers[i].state == READY;
    all_at_barrier &= fibers[i].state == AT_BARRIER || fibers[i].state == DONE;
    if (fibers[i].state == AT_WARP && warp_complete(fibers[i])) complete.push_back(i);
  }
  for (size_t i : complete) fibers[i].state = READY;
  any |= !complete.empty();
  if (all_at_barrier)
    for (Fiber& fiber : fibers)
      if (fiber.state == AT_BARRIER) fiber.state = READY, any = true;
  return any;
}

static std::vector<size_t> permutation(size_t n, int order, std::mt19937& random) {
  std::vector<size_t> p(n);
  std::iota(p.begin(), p.end(), 0);
  if (order == 1) std::reverse(p.begin(), p.end());
  if (order == 2) std::shuffle(p.begin(), p.end(), random);
  return p;
}

static bool run_block(int order, std::mt19937& random) {
  if (__start_sprint_shared != nullptr)
    memset(__start_sprint_shared, 0xff, __stop_sprint_shared - __start_sprint_shared);
  for (size_t i = 0; i < fibers.size(); ++i) start(fibers[i], (unsigned)i);
  do {
    for (size_t i : permutation(fibers.size(), order, random))
      if (fibers[i].state == READY) resume(fibers[i]);
  } while (release());
  for (const Fiber& fiber : fibers)
    if (fiber.state != DONE) return false;
  return true;
}

// 0: fine; 1: some threads wait at a barrier or warp operation that the others never reach.
static int launch(dim3 grid, dim3 block, int order, unsigned seed, void (*kernel)(void*), void* args) {
  std::lock_guard<std::mutex> lock(device_mutex);
  body = kernel, arguments = args, grid_dim = grid, block_dim = block;
  const size_t threads = (size_t)block.x * block.y * block.z;
  if (fibers.size() != threads) fibers = std::vector<Fiber>(threads);
  exchange.assign((threads + WARP - 1) / WARP * 2 * WARP, 0);
  std::mt19937 random(seed);
  for (size_t b : permutation((size_t)grid.x * grid.y * grid.z, order, random)) {
    block_index = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / grid.x / grid.y)};
    if (!run_block(order, random)) return 1;
  }
  return 0;
}

// Publishes `value` to the warp, waits for the lanes of `mask`, returns the warp's values of this operation.
template <class T>
static const uint64_t* warp_exchange(unsigned mask, T value) {
  Fiber* self = current;
  uint64_t* slots = &exchange[(size_t)self->warp * 2 * WARP + (self->collectives & 1) * WARP];
  memcpy(&slots[self->lane], &value, sizeof value);
  self->mask = mask;
  wait(AT_WARP);
  ++self->collectives;
  return slots;
}
template <class T>
static T warp_read(unsigned mask, T value, unsigned lane) {
  T result;
  memcpy(&result, &warp_exchange(mask, value)[lane], sizeof result);
  return result;
}

}  // namespace simt

#define threadIdx (simt::current->index)
#define blockIdx (simt::block_index)
#define blockDim (simt::block_dim)
#define gridDim (simt::grid_dim)
static inline void __syncthreads() { simt::wait(simt::AT_BARRIER); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { simt::warp_exchange(mask, 0); }
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int lanes) {
  return simt::warp_read(mask, v, (simt::current->lane ^ lanes) & 31);
}
template <class T>
static inline T __shfl_sync(unsigned mask, T v, int lane) {
  return simt::warp_read(mask, v, lane & 31);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta) {
  const unsigned lane = simt::current->lane + delta;
  return simt::warp_read(mask, v, lane < 32 ? lane : simt::current->lane);
}
template <class T>
static inline T atomicAdd(T* address, T v) {
  const T old = *address;
  *address = old + v;
  return old;
}

// ---- guarded copies of array arguments -------------------------------------------------------------------------------
namespace simt {
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t ZONE = 0;  // AddressSanitizer's own red zones surround the allocation
#else
constexpr size_t ZONE = 4096;
#endif
constexpr unsigned char CANARY = 0xa5;
}  // namespace simt

extern "C" void* simt_guard(const void* data, size_t bytes) {
  unsigned char* zone = (unsigned char*)malloc(bytes + 2 * simt::ZONE);
  memset(zone, simt::CANARY, simt::ZONE);
  memset(zone + simt::ZONE + bytes, simt::CANARY, simt::ZONE);
  memcpy(zone + simt::ZONE, data, bytes);
  return zone + simt::ZONE;
}

// Copies back (unless constant) and frees. 0: fine; 1: written before the array; 2: written past it; 3: a constant changed.
extern "C" int simt_unguard(void* guarded, void* data, size_t bytes, int constant) {
  unsigned char* inside = (unsigned char*)guarded;
  int fault = 0;
  for (size_t i = 1; i <= simt::ZONE; ++i)
    if (inside[-(long)i] != simt::CANARY) fault = 1;
  for (size_t i = 0; i < simt::ZONE; ++i)
    if (inside[bytes + i] != simt::CANARY) fault = 2;
  if (constant && memcmp(inside, data, bytes) != 0) fault = 3;
  if (!constant) memcpy(data, inside, bytes);
  free(inside - simt::ZONE);
  return fault;
}
