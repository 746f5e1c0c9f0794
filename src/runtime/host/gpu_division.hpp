// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "runtime/host/device.hpp"

namespace starpipe::runtime {

/// A rank of a host that has GPUs.
struct RankWithGpus {
  std::vector<Device> visible;  ///< GPUs that the launcher lets it see
  int workers = 1;              ///< logical workers that are to have a GPU
};

/// Divides a host's GPUs among its ranks. Returns the GPUs of each rank's workers, ascending. Ranks that see
/// the same GPUs divide them into groups of near GPUs, in proportion to their workers. Where workers are more
/// than GPUs, several share a GPU; where they are fewer, the GPUs nearest to each other are taken.
std::vector<std::vector<Device>> divide_gpus(std::span<const RankWithGpus> ranks);

}  // namespace starpipe::runtime
