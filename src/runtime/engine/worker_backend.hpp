// SPDX-License-Identifier: Apache-2.0
// The device that kernels of a StarPU worker run on, and host memory that GPUs copy from.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include <starpu.h>

#include "runtime/engine/kernels.hpp"

namespace starpipe::runtime {

/// Enqueues a task's kernels on the stream of the CUDA worker that calls: see run_kernel. `found`: in
/// SharedFlags, or nullptr. In builds without CUDA it is never called.
void run_kernel_on_stream(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
                          model::Memory scratch, NonFinite* found) noexcept;

/// Flags of tasks in the host's memory, all 0 at first. The GPUs of this process write to the same memory by
/// the same addresses.
class SharedFlags {
 public:
  /// `on_gpus`: GPUs write to the flags. Throws std::runtime_error if CUDA has no memory for that.
  SharedFlags(std::size_t count, bool on_gpus);
  [[nodiscard]] std::span<NonFinite> get() const { return {memory_.get(), count_}; }

 private:
  std::size_t count_;
  std::unique_ptr<NonFinite[], void (*)(NonFinite*)> memory_;
};

/// Locks pages of host memory for its own lifetime, so that copies between the memory and a GPU need not wait
/// for each other.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::span<float> memory) : memory_(memory) {
    pinned_ = starpu_memory_pin(memory_.data(), memory_.size_bytes()) == 0;
  }
  ~PinnedMemory() {
    if (pinned_) starpu_memory_unpin(memory_.data(), memory_.size_bytes());
  }
  PinnedMemory(PinnedMemory&& other) noexcept
      : memory_(other.memory_), pinned_(std::exchange(other.pinned_, false)) {}
  PinnedMemory& operator=(PinnedMemory&&) = delete;

 private:
  std::span<float> memory_;
  bool pinned_ = false;
};

}  // namespace starpipe::runtime
