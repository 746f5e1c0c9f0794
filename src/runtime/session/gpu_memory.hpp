// SPDX-License-Identifier: Apache-2.0
// The memory that a run takes of GPUs: its peaks by StarPU's account and by the driver's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

/// Bytes in use on one GPU, as one rank sees it. The driver counts all processes, and memory that StarPU does
/// not count: CUDA's context, kernels, cuBLAS's workspace. Plain data: it travels between ranks as bytes.
struct GpuMemory {
  std::int32_t rank = 0;
  std::int32_t gpu = 0;           ///< CUDA's number on that rank
  std::uint64_t starpu_peak = 0;  ///< allocated by StarPU: data, scratch, and buffers that it keeps for later
  std::uint64_t driver_before = 0;       ///< before StarPU started
  std::uint64_t driver_initialised = 0;  ///< when StarPU and cuBLAS had started
  std::uint64_t driver_peak = 0;

  /// Returns the increase during the steps.
  [[nodiscard]] std::uint64_t driver_added() const {
    return driver_peak > driver_initialised ? driver_peak - driver_initialised : 0;
  }
};

/// The peaks of both accounts for one GPU, over the moments at which it is sampled. Any thread may call any
/// function at any time; no lock is held while StarPU or the driver is asked.
class GpuMemoryMeter {
 public:
  using Bytes = std::function<std::uint64_t()>;

  /// `starpu`, `driver`: bytes in use now. The driver is slow and is asked only at a new peak of StarPU's,
  /// since StarPU takes from the driver the memory that it gives to data.
  GpuMemoryMeter(Bytes starpu, Bytes driver) : starpu_(std::move(starpu)), driver_(std::move(driver)) {}

  void sample() {
    if (raise(starpu_peak_, starpu_())) raise(driver_peak_, driver_());
  }

  /// Asks the driver too: other processes, or libraries, may have taken memory meanwhile. For the end of a
  /// step.
  void sample_both() {
    sample();
    raise(driver_peak_, driver_());
  }

  [[nodiscard]] std::uint64_t starpu_peak() const { return starpu_peak_; }
  [[nodiscard]] std::uint64_t driver_peak() const { return driver_peak_; }

 private:
  // Raises `peak` to `value`. Returns true if it is a new peak.
  static bool raise(std::atomic<std::uint64_t>& peak, std::uint64_t value) {
    std::uint64_t before = peak;
    while (before < value) {
      if (peak.compare_exchange_weak(before, value)) return true;
    }
    return false;
  }

  Bytes starpu_;
  Bytes driver_;
  std::atomic<std::uint64_t> starpu_peak_ = 0;
  std::atomic<std::uint64_t> driver_peak_ = 0;
};

/// Returns the entry of a GPU. Throws std::logic_error if it has none.
GpuMemory& entry_of(std::span<GpuMemory> memory, int gpu);

/// A meter for each GPU of this process's StarPU.
class GpuMemoryMeters {
 public:
  /// `nodes`: StarPU's memory node of each logical worker, -1 for workers of other ranks.
  explicit GpuMemoryMeters(std::vector<int> nodes);

  /// Samples the GPU that a logical worker of this rank is on. Any thread may call it.
  void sample(int worker) { meters_.at(nodes_[index(worker)]).sample(); }
  void end_step() {
    for (auto& [node, meter] : meters_) meter.sample_both();
  }
  /// Sets the peaks of `memory`, this rank's GPUs. Throws std::logic_error when a GPU of StarPU's is not
  /// among them.
  void write_to(std::vector<GpuMemory>& memory) const;

 private:
  std::vector<int> nodes_;
  std::map<int, GpuMemoryMeter> meters_;  // by memory node
};

}  // namespace starpipe::runtime
