// SPDX-License-Identifier: Apache-2.0
#undef _FORTIFY_SOURCE  // its _longjmp() refuses to go to another stack
#include <algorithm>
#include <bit>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <ucontext.h>

#include "codelets/emulated_cuda/codelets/cuda/kernels/launch.cuh"
#include "starpipe/base/index.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace starpipe::model::cuda {
namespace {

constexpr std::size_t warp_lanes = 32;

/// A stack. The address sanitizer must be told of every switch from one stack to another.
struct Stack {
  const void* bottom = nullptr;
  std::size_t size = 0;
};

// To call before and after a switch of stacks. `left`: where the sanitizer keeps its data of the stack that
// is left; null when that stack ends. `from`, when not null, gets the stack that was left.
void start_switch([[maybe_unused]] void** left, [[maybe_unused]] const Stack& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(left, to.bottom, to.size);
#endif
}
void finish_switch([[maybe_unused]] void* left, [[maybe_unused]] Stack* from) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(left, from == nullptr ? nullptr : &from->bottom,
                                  from == nullptr ? nullptr : &from->size);
#endif
}

/// A copy that begin_copy() has begun.
struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
  bool inside;
};

/// One thread of the block. It lives on when its block ends, for a thread of the next one.
struct Fiber {
  static constexpr std::size_t stack_bytes = 256 * 1024;  // sanitizers need much
  enum class State { ready, at_block_barrier, at_warp_barrier, exchanging, ended };

  ucontext_t start{};
  std::jmp_buf paused{};
  bool has_started = false;
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
  void* of_sanitizer = nullptr;  // the sanitizer's data of this stack while another one runs
  State state = State::ended;
  dim3 index;
  unsigned exchanges = 0;    // how many the thread has made
  unsigned votes = 0;        // how many the thread has made
  bool vote[2] = {};         // its last two: a thread can be one vote ahead of another, no more
  std::vector<Copy> copies;  // begun and not ended
};

/// Runs one block at a time. Threads take turns: each runs until its next barrier, in an order that is
/// shuffled after every round.
class Block {
 public:
  void run(const char* name, const Grid& grid, const std::function<void()>& thread) {
    name_ = name;
    thread_ = &thread;
    count_ = std::size_t{grid.threads.x} * grid.threads.y * grid.threads.z;
    while (fibers_.size() < count_) add_fiber();
    exchanged_.resize(ceil_div(count_, warp_lanes));
    order_.resize(count_);
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    for (std::size_t i = 0; i < count_; ++i) start(i, grid.threads);
    while (release()) {
      std::shuffle(order_.begin(), order_.end(), random_);
      for (const std::size_t i : order_) {
        if (fibers_[i]->state == Fiber::State::ready) resume(i);
      }
    }
  }

  void wait(Fiber::State state) {
    Fiber& fiber = current();
    fiber.state = state;
    start_switch(&fiber.of_sanitizer, scheduler_stack_);
    // swapcontext() would take four times as long: it asks the kernel for the mask of signals.
    if (_setjmp(fiber.paused) == 0) _longjmp(scheduler_, 1);
    finish_switch(fiber.of_sanitizer, &scheduler_stack_);
  }

  [[nodiscard]] Fiber& current() { return *fibers_[current_]; }
  [[nodiscard]] unsigned lane() const { return static_cast<unsigned>(current_ % warp_lanes); }

  const WarpWords& exchange(const Words& words) {
    WarpWords& warp = exchanged_[current_ / warp_lanes][current().exchanges++ % 2];
    warp[lane()] = words;
    wait(Fiber::State::exchanging);
    return warp;
  }

  bool any(bool predicate) {
    const unsigned slot = current().votes++ % 2;
    current().vote[slot] = predicate;
    wait(Fiber::State::at_block_barrier);
    const auto votes = [slot](const auto& fiber) { return fiber->vote[slot]; };
    return std::any_of(fibers_.begin(), fibers_.begin() + static_cast<std::ptrdiff_t>(count_), votes);
  }

 private:
  static void enter();

  void add_fiber() {
    Fiber& fiber = *fibers_.emplace_back(std::make_unique<Fiber>());
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = Fiber::stack_bytes;
    makecontext(&fiber.start, enter, 0);
  }

  void start(std::size_t i, const dim3& threads) {
    Fiber& fiber = *fibers_[i];
    const auto number = static_cast<unsigned>(i);
    fiber.index = dim3(number % threads.x, number / threads.x % threads.y, number / threads.x / threads.y);
    fiber.state = Fiber::State::ready;
    fiber.exchanges = fiber.votes = 0;
    fiber.copies.clear();
  }

  void resume(std::size_t i) {
    current_ = i;
    Fiber& fiber = *fibers_[i];
    threadIdx = fiber.index;
    void* of_sanitizer = nullptr;
    start_switch(&of_sanitizer, {fiber.stack.get(), Fiber::stack_bytes});
    if (_setjmp(scheduler_) == 0) {
      if (fiber.has_started) _longjmp(fiber.paused, 1);
      fiber.has_started = true;
      setcontext(&fiber.start);
    }
    finish_switch(of_sanitizer, nullptr);
  }

  [[nodiscard]] bool all(std::size_t first, std::size_t last, Fiber::State state) const {
    for (std::size_t i = first; i < last; ++i) {
      if (fibers_[i]->state != state) return false;
    }
    return true;
  }
  void make_ready(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) fibers_[i]->state = Fiber::State::ready;
  }

  /// Makes the threads ready whose block or warp has reached a barrier as a whole. Returns false when all
  /// threads have ended. Ends the process when no thread can continue.
  bool release() {
    if (all(0, count_, Fiber::State::ended)) return false;
    if (all(0, count_, Fiber::State::at_block_barrier)) make_ready(0, count_);
    for (std::size_t first = 0; first + warp_lanes <= count_; first += warp_lanes) {
      for (const auto state : {Fiber::State::at_warp_barrier, Fiber::State::exchanging}) {
        if (all(first, first + warp_lanes, state)) make_ready(first, first + warp_lanes);
      }
    }
    for (std::size_t i = 0; i < count_; ++i) {
      if (fibers_[i]->state == Fiber::State::ready) return true;
    }
    std::fprintf(stderr, "emulated CUDA: %s: threads wait at a barrier that others do not reach\n", name_);
    std::abort();
  }

  const char* name_ = "";
  const std::function<void()>* thread_ = nullptr;
  std::size_t count_ = 0;
  std::size_t current_ = 0;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  // Two exchanges a warp: a lane can be one exchange ahead of another, no more.
  std::vector<std::array<WarpWords, 2>> exchanged_;
  std::vector<std::size_t> order_;
  std::jmp_buf scheduler_{};
  Stack scheduler_stack_;
  std::mt19937 random_{std::random_device{}()};
};

Block& block() {
  static Block block;
  return block;
}

void Block::enter() {
  finish_switch(nullptr, &block().scheduler_stack_);
  for (;;) {
    (*block().thread_)();
    block().wait(Fiber::State::ended);
  }
}

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
std::unique_ptr<float[], Free>& shared() {
  static std::unique_ptr<float[], Free> floats;
  return floats;
}

/// Gives the next block new shared memory of NaN, of the exact size: nothing is left of the block before, and
/// sanitizers notice accesses beyond the end.
void renew_shared(std::size_t count) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 128, std::max<std::size_t>(count, 1) * sizeof(float)) != 0) std::abort();
  shared().reset(static_cast<float*>(memory));
  std::fill_n(shared().get(), count, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

float* shared_floats() { return shared().get(); }

void require(bool holds, const char* message) {
  if (holds) return;
  std::fprintf(stderr, "emulated CUDA: %s\n", message);
  std::abort();
}

unsigned lane() { return block().lane(); }
const WarpWords& exchange(const Words& words) { return block().exchange(words); }

void begin_copy(void* to, const void* from, std::size_t bytes, bool inside) {
  const auto aligned = [&](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % bytes == 0; };
  require(aligned(to) && aligned(from), "copy_async: an address is not a multiple of the copied bytes");
  std::memset(to, 0xff, bytes);
  block().current().copies.push_back({to, from, bytes, inside});
}

void end_copies() {
  for (const Copy& copy : block().current().copies) {
    if (copy.inside) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::memset(copy.to, 0, copy.bytes);
    }
  }
  block().current().copies.clear();
}

void run_grid(const char* name, const Grid& grid, const std::function<void()>& thread) {
  const std::size_t threads = std::size_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  const bool fits =
      threads >= 1 && threads <= 1024 && grid.blocks.x >= 1 && grid.blocks.x <= 0x7fffffff &&
      grid.blocks.y >= 1 && grid.blocks.y <= 65535 && grid.blocks.z == 1 &&
      grid.shared * sizeof(float) <= 99 * 1024;  // compute capability 8.6, which has the least since 8.0
  if (!fits) {
    std::fprintf(stderr, "emulated CUDA: %s: the grid exceeds the limits of some GPU\n", name);
    std::abort();
  }
  blockDim = grid.threads;
  gridDim = grid.blocks;
  for (unsigned y = 0; y < grid.blocks.y; ++y) {
    for (unsigned x = 0; x < grid.blocks.x; ++x) {
      blockIdx = dim3(x, y);
      renew_shared(grid.shared);
      block().run(name, grid, thread);
    }
  }
}

}  // namespace starpipe::model::cuda

using starpipe::model::cuda::block;
using starpipe::model::cuda::Fiber;

constexpr const char* less_than_a_warp = "the mask of a warp's exchange does not have all lanes";

namespace {

/// The value that the lane whose number differs in `lane_mask` gives. `words`: of 32 bits in a value.
template <class Value, std::size_t words>
Value from_lane(unsigned mask, Value value, int lane_mask) {
  namespace cuda = starpipe::model::cuda;
  cuda::require(mask == 0xffffffffu, less_than_a_warp);
  using Own = std::array<std::uint32_t, words>;
  cuda::Words given{};
  std::ranges::copy(std::bit_cast<Own>(value), given.begin());
  const cuda::Words& taken = cuda::exchange(given)[cuda::lane() ^ static_cast<unsigned>(lane_mask)];
  Own own{};
  std::copy_n(taken.begin(), words, own.begin());
  return std::bit_cast<Value>(own);
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier)
void __syncthreads() { block().wait(Fiber::State::at_block_barrier); }
void __syncwarp() { block().wait(Fiber::State::at_warp_barrier); }
int __syncthreads_or(int predicate) { return block().any(predicate != 0) ? 1 : 0; }
float __shfl_xor_sync(unsigned mask, float value, int lane_mask) {
  return from_lane<float, 1>(mask, value, lane_mask);
}
double __shfl_xor_sync(unsigned mask, double value, int lane_mask) {
  return from_lane<double, 2>(mask, value, lane_mask);
}
unsigned __ballot_sync(unsigned mask, int predicate) {
  namespace cuda = starpipe::model::cuda;
  cuda::require(mask == 0xffffffffu, less_than_a_warp);
  unsigned lanes = 0;
  const cuda::WarpWords& warp = cuda::exchange({predicate != 0});
  for (unsigned i = 0; i < warp.size(); ++i) lanes |= warp[i][0] << i;
  return lanes;
}
// NOLINTEND(bugprone-reserved-identifier)
