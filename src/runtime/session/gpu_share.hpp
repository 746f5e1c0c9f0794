// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/hardware/link.hpp"

namespace starpipe::runtime {

/// The GPUs that carry logical workers of a rank; none: all its workers are CPU cores.
struct GpuShare {
  std::vector<int> gpus;  ///< CUDA's numbers in this process, ascending
  int workers_each = 1;   ///< logical workers of each: streams of one GPU
  /// By place, nothing where the worker is a core; empty without GPUs.
  std::vector<std::optional<Device>> devices;

  [[nodiscard]] bool has(int place) const {
    return !devices.empty() && devices[static_cast<std::size_t>(place)].has_value();
  }
};

/// The PUs of a rank's places as StarPU gives them to its threads: first one for each GPU, which drives all
/// its streams, then those of the workers on cores.
std::vector<unsigned> cores_in_order(std::span<const unsigned> pus, const GpuShare& gpus);

}  // namespace starpipe::runtime
