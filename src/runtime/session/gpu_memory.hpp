// SPDX-License-Identifier: Apache-2.0
// What a run takes of GPUs' memory, by StarPU's account and by the driver's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace starpipe::runtime {

/// Bytes in use on one GPU, as one rank sees it. The driver's are those of all processes, and count what
/// StarPU's do not: CUDA's context, kernels, cuBLAS's workspace. Plain data: it travels between ranks as
/// bytes.
struct DeviceMemory {
  std::int32_t rank = 0;
  std::int32_t gpu = 0;           ///< CUDA's number on that rank
  std::uint64_t starpu_peak = 0;  ///< allocated by StarPU: data, scratch, and buffers that it keeps for later
  std::uint64_t driver_before = 0;       ///< before StarPU started
  std::uint64_t driver_initialised = 0;  ///< when StarPU and cuBLAS had started
  std::uint64_t driver_peak = 0;

  /// What the steps added.
  [[nodiscard]] std::uint64_t driver_added() const {
    return driver_peak > driver_initialised ? driver_peak - driver_initialised : 0;
  }
};

/// The peaks of both accounts at the moments when it is asked to look. Thread-safe.
class DeviceMeter {
 public:
  using Bytes = std::function<std::uint64_t()>;

  /// `starpu`, `driver`: bytes in use now. The second is slow: it is asked only when the first is higher than
  /// ever, since StarPU takes from the driver what it gives to data.
  DeviceMeter(Bytes starpu, Bytes driver) : starpu_(std::move(starpu)), driver_(std::move(driver)) {}

  void sample() {
    const std::scoped_lock lock(mutex_);
    const std::uint64_t now = starpu_();
    if (now <= starpu_peak_) return;
    starpu_peak_ = now;
    look_at_driver();
  }

  /// At the end of a step: what other processes, or libraries, have taken meanwhile.
  void sample_both() {
    sample();
    const std::scoped_lock lock(mutex_);
    look_at_driver();
  }

  [[nodiscard]] std::uint64_t starpu_peak() const { return starpu_peak_; }
  [[nodiscard]] std::uint64_t driver_peak() const { return driver_peak_; }

 private:
  void look_at_driver() { driver_peak_ = std::max(driver_peak_, driver_()); }

  Bytes starpu_;
  Bytes driver_;
  std::mutex mutex_;
  std::uint64_t starpu_peak_ = 0;
  std::uint64_t driver_peak_ = 0;
};

/// One a GPU of this process's StarPU.
class DeviceMeters {
 public:
  /// `nodes`: StarPU's memory node of each logical worker, -1 for those of other ranks.
  explicit DeviceMeters(std::vector<int> nodes);

  /// Of the GPU that a logical worker of this rank is on.
  void sample(int worker) { meters_.at(nodes_[static_cast<std::size_t>(worker)]).sample(); }
  void end_step() {
    for (auto& [node, meter] : meters_) meter.sample_both();
  }
  /// Sets the peaks, by GPU.
  void write_to(std::vector<DeviceMemory>& memory) const;

 private:
  std::vector<int> nodes_;
  std::map<int, DeviceMeter> meters_;  // by memory node
};

}  // namespace starpipe::runtime
