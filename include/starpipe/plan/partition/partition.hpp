// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "starpipe/plan/partition/unit_costs.hpp"

namespace starpipe::plan {

/// Which workers may have which units.
enum class Allocation : std::uint8_t {
  contiguous,  ///< at most one stage a worker, in their order: stage s on worker s, where all are alike
  placed,      ///< exactly the stages of `stage_workers`, each of one unit at least
  general,     ///< any worker any units; neighbours on one worker are a stage
};

/// A chain of units to cut into stages, and the workers that shall run them.
///
/// The load of a worker is its time for one micro-batch: F + B + W of its units, and alpha + beta * bytes
/// for each activation and gradient that it receives from another worker (what `simulate` gives as its busy
/// time and waits for transfers that do not overlap compute). No schedule has a period below the largest
/// load, the bottleneck (source 002, section 4).
///
/// The memory of a worker is that of its stages: (2 + optimizer_states) * weights for the weights, their
/// gradient and the optimizer's state, and as many stashes as the schedule holds there at once.
struct PartitionRequest {
  std::vector<UnitCosts> units = {};
  int workers = 1;
  /// By worker: the kind of its device, by which UnitCosts gives its times. Empty: all are of kind 0.
  std::vector<int> kinds = {};
  Allocation allocation = Allocation::contiguous;
  /// Worker of each stage along the chain, for `placed`.
  std::vector<int> stage_workers = {};
  /// Most stages of a `general` allocation.
  std::optional<int> most_stages = {};
  double alpha = 0;
  double beta = 0;
  /// Bytes that a worker may hold.
  double memory_limit = std::numeric_limits<double>::infinity();
  /// Sizes of the weights that the optimizer keeps: 2 for AdamW, 1 for SGD with momentum, 0 for plain SGD.
  double optimizer_states = 2;
  /// Stashes that a stage holds, by the number of stages that follow it, the last entry for all further ones
  /// (see `stashes_held`).
  std::vector<int> stashes = {1};
  /// Steps after which branch and bound gives up to prove its best to be optimal.
  std::int64_t steps = 4'000'000;
};

/// What a worker has to do for one micro-batch, and to hold.
struct WorkerLoad {
  double time = 0;       ///< F + B + W of its units
  double transfers = 0;  ///< of what it receives
  double memory = 0;     ///< bytes
  [[nodiscard]] double load() const { return time + transfers; }
};

/// Stages and their workers.
struct Partition {
  std::vector<int> cuts;           ///< first unit of each stage but the first
  std::vector<int> stage_workers;  ///< worker of each stage
  std::vector<WorkerLoad> loads;   ///< by worker
  double bottleneck = 0;           ///< the largest load
  /// No partition that the request allows has a smaller bottleneck.
  double lower_bound = 0;
  [[nodiscard]] bool optimal() const { return bottleneck <= lower_bound * (1 + 1e-9); }
};

/// The partition with the smallest bottleneck within the memory limit.
///
/// With one stage a worker: dynamic programming, always optimal, and among the optima the one with the
/// smallest sum of squared loads; O(S n^2) for n units, and O(S^2 n^2) where workers are of several kinds
/// and memory is limited: then any of them may be left out. Several stages a worker, or a general allocation,
/// are NP-complete (source 002, section 4): local search from the contiguous optimum and a greedy one, then
/// branch and bound, which proves the best to be optimal unless it runs out of `steps`.
/// docs/partition.md has the recurrences. Deterministic.
///
/// Throws InputError for counts below 1, fewer units than stages, costs that are negative or not finite, a
/// worker that does not exist, and a memory limit that no partition was found for, with the least that one
/// needs.
Partition partition(const PartitionRequest& request);

/// What given stages cost; `lower_bound` is that of any cuts for the same workers: the mean load and the
/// longest unit. Throws InputError as `partition` does, but for a limit that is passed.
Partition evaluate_partition(const PartitionRequest& request, std::vector<int> cuts,
                             std::vector<int> stage_workers);

}  // namespace starpipe::plan
