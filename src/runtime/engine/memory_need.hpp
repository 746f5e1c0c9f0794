// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/engine/task_graph.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::runtime {

/// The bytes of one worker at the moment of a step when it needs the most, as if it had memory of its own, as
/// a GPU has. `runtime.memory_limit` limits these bytes; `schedule.memory_limit` limits a number of stashes.
struct WorkerMemory {
  std::uint64_t weights = 0;      ///< weights that it holds, in both precisions, and copies that it fetched
  std::uint64_t gradients = 0;    ///< weight gradients: its accumulators, and contributions that it received
  std::uint64_t optimizer = 0;    ///< the optimizer's state
  std::uint64_t stashes = 0;      ///< stashes, and gradient stashes that B keeps for W
  std::uint64_t activations = 0;  ///< the step's data, and activations and gradients between stages
  std::uint64_t workspace = 0;    ///< working memory of the kernels, for each of its stages

  [[nodiscard]] std::uint64_t total() const {
    return weights + gradients + optimizer + stashes + activations + workspace;
  }
};

/// One part of a worker's memory: its name in reports, and the member that counts its bytes.
struct MemoryPart {
  std::string_view name;
  std::uint64_t WorkerMemory::*bytes;
};
/// The only list of the parts, in the order of all reports.
inline constexpr std::array<MemoryPart, 6> memory_parts = {{{"weights", &WorkerMemory::weights},
                                                            {"gradients", &WorkerMemory::gradients},
                                                            {"optimizer", &WorkerMemory::optimizer},
                                                            {"stashes", &WorkerMemory::stashes},
                                                            {"activations", &WorkerMemory::activations},
                                                            {"workspace", &WorkerMemory::workspace}}};

/// The devices of the workers of `memory_need`.
struct WorkerDevices {
  /// By worker, the number of its device, from 0. Workers of one device share the data that they hold and
  /// fetch, but not their workspaces. Empty: each worker has a device of its own.
  std::vector<int> devices = {};
  /// By worker, true if it is a GPU. Empty: all are cores.
  std::vector<bool> on_gpu = {};
  /// By worker, the rank in whose main memory it receives data of other ranks, if devices are counted per
  /// rank: the number of the device that is the rank's main memory. Empty: workers have no ranks.
  std::vector<int> rank_of = {};
  /// With ranks: the window of submitted tasks, as DataSlots has it.
  std::optional<int> window = {};
};

/// While a GPU runs a job, it fetches the inputs of this many of its next jobs: the policy's `fetched_ahead`.
inline constexpr std::size_t jobs_fetched_ahead = 2;

/// Returns the need of each device in one step, by device number. Without `workers.devices`, a device is a
/// worker. `timeline`: the times of the step's jobs, by `simulate` or measured; `costs`: the times of
/// transfers.
///
/// On its writer's device a datum takes memory from the start of the job that writes it to the end of the
/// last job there that touches it, or until it has been sent. On another device it takes memory from its
/// arrival to the end of the last job that reads it there; without prefetch, a transfer takes place at the
/// start of the job that reads it. Inputs and targets of a step last on a core; on a GPU they take memory
/// from the start of the second job before the first that reads them to the end of the last. Holders send
/// weights at the start of the step. Tasks of reductions take no time and run when their inputs are there.
/// A rank's main memory has what its workers receive from other ranks, for the whole step (received_bytes),
/// and the home of the data of its GPUs that last over the steps. If `rules.evaluated` is positive,
/// evaluations count, too. They run after a step, so they hold their own data and those that last over the
/// steps. O(jobs log jobs). Throws std::logic_error when schedule and network have different stage graphs.
std::vector<WorkerMemory> memory_need(const plan::Schedule& schedule, const model::Network& network,
                                      const model::OptimizerConfig& optimizer, const plan::Costs& costs,
                                      const plan::Timeline& timeline, const WorkerDevices& workers = {},
                                      const StepRules& rules = {});

/// From `time` on, until the next level, a device needs at most `bytes`.
struct MemoryLevel {
  double time = 0;
  std::uint64_t bytes = 0;
};

/// The need of one device in a step.
struct DeviceNeed {
  WorkerMemory peak;  ///< as `memory_need` has it
  /// From time 0 to the end of the step, in the order of time. Exact when it has less than `max_levels`
  /// entries; else each entry is the largest need in a part of the step, of which there are `max_levels`.
  /// Evaluations, which come after the step, are not in it. Empty when the step takes no time.
  std::vector<MemoryLevel> over_time;
  /// Bytes that workers on cores keep beyond the peak: free memory serves later data of the same size only
  /// (session/host_buffers.hpp).
  std::uint64_t kept = 0;
};
inline constexpr std::size_t max_levels = 400;

/// Returns the same as `memory_need`, and the need over time.
std::vector<DeviceNeed> memory_need_over_time(const plan::Schedule& schedule, const model::Network& network,
                                              const model::OptimizerConfig& optimizer,
                                              const plan::Costs& costs, const plan::Timeline& timeline,
                                              const WorkerDevices& workers = {}, const StepRules& rules = {});

/// Returns the same for a run that evaluates and does not train: weights without optimizer state, gradients
/// and stashes. `schedule`: the training's schedule, whose forward passes run on `microbatches`
/// micro-batches.
std::vector<WorkerMemory> evaluation_memory_need(const plan::Schedule& schedule,
                                                 const model::Network& network, const plan::Costs& costs,
                                                 int microbatches, const WorkerDevices& workers = {});

}  // namespace starpipe::runtime
