// Host, simt mode: true CUDA semantics for tests. Every thread of a block is a fiber; __syncthreads, shuffles and votes
// really wait; the order in which fibers (and blocks) run is forward, reverse or shuffled by a seed, so that a missing
// barrier or a race changes the result. Shared memory is filled with NaN before each block. Array arguments run inside
// guarded copies, so that a write outside them is found and a read outside gives NaN (AddressSanitizer finds it too).
#include <csetjmp>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <ucontext.h>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define __shared__ static __attribute__((section("sprint_shared")))
extern char __start_sprint_shared[] __attribute__((weak)), __stop_sprint_shared[] __attribute__((weak));

namespace simt {

enum State { READY, AT_BARRIER, AT_WARP, DONE };
constexpr size_t STACK_BYTES = 128 << 10;
constexpr int WARP = 32;

struct Fiber {
  std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
  bool begun = false;  // it waits in fiber_main for the next block; otherwise `context` is where it begins
  ucontext_t context;
  jmp_buf where;
  dim3 index;
  unsigned lane, warp, mask;
  State state;
  uint64_t sent, received[WARP];  // what a warp operation exchanges
  void* fake_stack;
};

static std::mutex device_mutex;  // one launch at a time: the state below is the device's
static std::vector<Fiber> fibers;
static Fiber* current;
static jmp_buf scheduler;
static void* scheduler_fake_stack;
static const void* scheduler_stack;
static size_t scheduler_stack_bytes;
static dim3 block_index, block_dim, grid_dim;
static void (*body)(void*);
static void* arguments;

// Switches by _setjmp and _longjmp: swapcontext asks the kernel for the signal mask every time.
static __attribute__((noinline)) void switch_to_scheduler() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&current->fake_stack, scheduler_stack, scheduler_stack_bytes);
#endif
  if (_setjmp(current->where) == 0) _longjmp(scheduler, 1);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(current->fake_stack, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

static void wait(State state) {
  current->state = state;
  switch_to_scheduler();
}

static void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
  for (;;) {
    body(arguments);
    wait(DONE);
  }
}

static __attribute__((noinline)) void resume(Fiber& fiber) {
  current = &fiber;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, fiber.stack.get(), STACK_BYTES);
#endif
  if (_setjmp(scheduler) == 0) {
    if (fiber.begun) _longjmp(fiber.where, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
}

static void prepare(Fiber& fiber) {
  fiber.begun = false;
  fiber.fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(fiber.stack.get(), STACK_BYTES);  // what a stuck kernel left there is no longer live
#endif
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = STACK_BYTES;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, fiber_main, 0);
}

static void start(Fiber& fiber, unsigned linear) {
  fiber.index = {linear % block_dim.x, linear / block_dim.x % block_dim.y, linear / block_dim.x / block_dim.y};
  fiber.lane = linear % WARP;
  fiber.warp = linear / WARP;
  if (!fiber.begun || fiber.state != DONE) prepare(fiber);
  fiber.state = READY;
}

// A warp operation is complete when every lane of its mask that has not ended waits in it.
static bool warp_complete(const Fiber* warp, unsigned lanes, unsigned mask) {
  for (unsigned i = 0; i < lanes; ++i)
    if ((mask >> i & 1) && warp[i].state != DONE && !(warp[i].state == AT_WARP && warp[i].mask == mask)) return false;
  return true;
}

// Completes the warp operations that can be; the lanes of one get each other's values all at once.
static bool release_warp(Fiber* warp, unsigned lanes) {
  unsigned complete = 0;
  for (unsigned i = 0; i < lanes; ++i)
    if (warp[i].state == AT_WARP && warp_complete(warp, lanes, warp[i].mask)) complete |= 1u << i;
  for (unsigned i = 0; i < lanes; ++i) {
    if (!(complete >> i & 1)) continue;
    for (unsigned j = 0; j < WARP; ++j) warp[i].received[j] = j < lanes ? warp[j].sent : 0;
    warp[i].state = READY;
  }
  return complete != 0;
}

// Lets waiting fibers go on; false: nobody can (all ended, a deadlock, or a barrier that some will never reach).
static bool release() {
  bool any = false;
  for (size_t i = 0; i < fibers.size(); i += WARP)
    any |= release_warp(&fibers[i], (unsigned)std::min<size_t>(WARP, fibers.size() - i));
  const auto waits = [](const Fiber& fiber) { return fiber.state == AT_BARRIER; };
  if (!any && std::all_of(fibers.begin(), fibers.end(), waits)) {
    for (Fiber& fiber : fibers) fiber.state = READY;
    any = true;
  }
  return any;
}

static std::vector<size_t> permutation(size_t n, int order, std::mt19937& random) {
  std::vector<size_t> p(n);
  std::iota(p.begin(), p.end(), 0);
  if (order == 1) std::reverse(p.begin(), p.end());
  if (order == 2) std::shuffle(p.begin(), p.end(), random);
  return p;
}

// 0: fine; 1: threads wait for ever; 2: threads have ended before a barrier at which all the others wait.
static int run_block(int order, std::mt19937& random) {
  if (__start_sprint_shared != nullptr)
    memset(__start_sprint_shared, 0xff, __stop_sprint_shared - __start_sprint_shared);
  for (size_t i = 0; i < fibers.size(); ++i) start(fibers[i], (unsigned)i);
  do {
    for (size_t i : permutation(fibers.size(), order, random))
      if (fibers[i].state == READY) resume(fibers[i]);
  } while (release());
  const auto count = [](State state) {
    return std::count_if(fibers.begin(), fibers.end(), [=](const Fiber& fiber) { return fiber.state == state; });
  };
  const size_t ended = count(DONE), waiting = count(AT_BARRIER);
  return ended == fibers.size() ? 0 : ended + waiting == fibers.size() ? 2 : 1;
}

// Runs all blocks of a grid; shape: grid x y z, block x y z. Returns what run_block says, 0 when all is well.
static int launch(const unsigned* shape, int order, unsigned seed, void (*kernel)(void*), void* args) {
  std::lock_guard<std::mutex> lock(device_mutex);
  body = kernel, arguments = args;
  grid_dim = {shape[0], shape[1], shape[2]}, block_dim = {shape[3], shape[4], shape[5]};
  const size_t threads = (size_t)block_dim.x * block_dim.y * block_dim.z;
  if (fibers.size() != threads) fibers = std::vector<Fiber>(threads);
  std::mt19937 random(seed);
  for (size_t b : permutation((size_t)grid_dim.x * grid_dim.y * grid_dim.z, order, random)) {
    block_index.x = (unsigned)(b % grid_dim.x);
    block_index.y = (unsigned)(b / grid_dim.x % grid_dim.y);
    block_index.z = (unsigned)(b / grid_dim.x / grid_dim.y);
    if (const int stuck = run_block(order, random)) return stuck;
  }
  return 0;
}

// Sends `value` to the warp, waits for the lanes of `mask`; returns what each lane sent.
template <class T>
static const uint64_t* warp_exchange(unsigned mask, T value) {
  Fiber* self = current;
  self->sent = 0;
  memcpy(&self->sent, &value, sizeof value);
  self->mask = mask;
  wait(AT_WARP);
  return self->received;
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
static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta) {
  const unsigned lane = simt::current->lane;
  return simt::warp_read(mask, v, lane >= delta ? lane - delta : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const uint64_t* votes = simt::warp_exchange(mask, predicate);
  unsigned result = 0;
  for (unsigned i = 0; i < simt::WARP; ++i)
    if ((mask >> i & 1) && (int)votes[i]) result |= 1u << i;
  return result;
}
template <class T>
static inline T atomicAdd(T* address, T v) {
  const T old = *address;
  *address = old + v;
  return old;
}

// ---- guarded copies of array arguments -------------------------------------------------------------------------
namespace simt {
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t ZONE = 0;  // AddressSanitizer's own red zones surround the allocation
#else
constexpr size_t ZONE = 4096;
#endif
static unsigned char canary(size_t i) { return "\xc5\xa5\xc5\x7f"[i % 4]; }  // a NaN for who reads it as float
}  // namespace simt

extern "C" void* simt_guard(const void* data, size_t bytes) {
  unsigned char* zone = (unsigned char*)malloc(bytes + 2 * simt::ZONE);
  for (size_t i = 0; i < simt::ZONE; ++i) zone[i] = zone[simt::ZONE + bytes + i] = simt::canary(i);
  memcpy(zone + simt::ZONE, data, bytes);
  return zone + simt::ZONE;
}

// Copies back (unless constant), frees. 0: fine; 1: written before the array; 2: written past it; 3: a constant changed.
extern "C" int simt_unguard(void* guarded, void* data, size_t bytes, int constant) {
  unsigned char *inside = (unsigned char*)guarded, *zone = inside - simt::ZONE;
  int fault = 0;
  for (size_t i = 0; i < simt::ZONE; ++i) {
    if (zone[i] != simt::canary(i)) fault = 1;
    if (inside[bytes + i] != simt::canary(i)) fault = 2;
  }
  if (constant && memcmp(inside, data, bytes) != 0) fault = 3;
  if (!constant) memcpy(data, inside, bytes);
  free(zone);
  return fault;
}
