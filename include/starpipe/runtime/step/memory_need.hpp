// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::runtime {

/// Bytes that one worker needs at the moment of a step when it needs the most, as if it had memory of its
/// own, as a GPU has. What `runtime.memory_limit` limits; not to be confused with the stashes that
/// `schedule.memory_limit` counts.
struct WorkerMemory {
  std::uint64_t weights = 0;      ///< that it holds, in both precisions, and copies of those it fetched
  std::uint64_t gradients = 0;    ///< of weights: its accumulators, and contributions it received
  std::uint64_t optimizer = 0;    ///< the optimizer's state
  std::uint64_t stashes = 0;      ///< what F keeps for B and W, and B for W
  std::uint64_t activations = 0;  ///< the step's data, and activations and gradients between stages
  std::uint64_t workspace = 0;    ///< of the kernels of its stages

  [[nodiscard]] std::uint64_t total() const {
    return weights + gradients + optimizer + stashes + activations + workspace;
  }
};

/// What the workers of `memory_need` are.
struct WorkerPlaces {
  /// The number of each worker's device, from 0 on: workers of one device share what they hold and fetch, but
  /// for their workspaces, and need it at different times. Empty: each has a device of its own.
  std::vector<int> devices = {};
  /// By worker, for its workspace. Empty: all are cores.
  std::vector<bool> on_gpu = {};
};

/// By device, which without `places.devices` is by worker, for the run that `timeline` is (`simulate`'s, or
/// one measured), transfers taking what `costs` says. A datum is where it is written from the start of the
/// job that writes it to the end of the last one there that touches it, or until it has been sent; elsewhere
/// from its arrival to the end of the last job that reads it there. Weights leave at the start of the step,
/// reductions take no time once all is there. O(jobs log jobs). Throws std::logic_error when schedule and
/// network have different stage graphs.
std::vector<WorkerMemory> memory_need(const plan::Schedule& schedule, const model::Network& network,
                                      const model::OptimizerConfig& optimizer, const plan::Costs& costs,
                                      const plan::Timeline& timeline, const WorkerPlaces& places = {});

}  // namespace starpipe::runtime
