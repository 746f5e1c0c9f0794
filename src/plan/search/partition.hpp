// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starpipe/plan/search/unit_costs.hpp"

namespace starpipe::plan {

/// The assignments of units to workers that are allowed.
enum class Allocation : std::uint8_t {
  contiguous,  ///< at most one stage per worker, in order; stage s on worker s if all workers are of one kind
  placed,      ///< exactly the stages of `stage_workers`, with at least one unit each
  general,     ///< any worker may have any units; neighbouring units on one worker are one stage
};

/// A chain of units to cut into stages, and the workers that the stages are for.
///
/// The load of a worker is its time for one micro-batch: F + B + W of its units, plus the time of the
/// transfer of each activation and gradient that it receives from another worker, on the link between the two
/// and undelayed by other transfers. `simulate` reports the same sum as busy time and transfer waits if
/// transfers do not overlap compute. The bottleneck is the largest load; no schedule has a shorter period
/// (Pipelined Model Parallelism, section 4).
///
/// The memory of a worker is the sum over its stages: (2 + optimizer_states) * weights for the weights, their
/// gradient and the optimizer's state, plus the stashes that the schedule holds there at once. Units may
/// share weights. The worker of the first of these units holds the weights, their gradient and the
/// optimizer's state. Every other worker with one of these units has a copy of the weights and a gradient.
/// Each is transferred once per step, so no load counts these transfers.
struct PartitionRequest {
  std::vector<UnitCosts> units = {};
  std::vector<SharedUnits> shared = {};
  int workers = 1;
  /// The kind of each worker's device, see UnitCosts::on. Empty: all are of kind 0.
  std::vector<int> kinds = {};
  Allocation allocation = Allocation::contiguous;
  /// Worker of each stage along the chain, for `placed`.
  std::vector<int> stage_workers = {};
  /// Largest number of stages of a `general` allocation.
  std::optional<int> max_stages = {};
  Links links = {};  ///< between workers
  /// Bytes that a worker may hold: one limit for all workers, or one for each.
  std::vector<double> memory_limits = {std::numeric_limits<double>::infinity()};
  /// Optimizer state, in multiples of the weights: 2 for AdamW, 1 for SGD with momentum, 0 for plain SGD.
  double optimizer_states = 2;
  /// stashes[f]: number of stashes that a stage holds if f stages follow it; the last entry is valid for
  /// larger f as well (see `stashes_held`).
  std::vector<int> stashes = {1};
  /// Steps after which branch and bound stops, even if its best partition is not proven optimal yet.
  std::int64_t steps = 4'000'000;
};

/// Time that a worker needs for one micro-batch, and memory that it holds.
struct WorkerLoad {
  double time = 0;       ///< F + B + W of its units
  double transfers = 0;  ///< time of the activations and gradients that it receives
  double memory = 0;     ///< bytes
  [[nodiscard]] double load() const { return time + transfers; }
};

/// Stages and their workers.
struct Partition {
  std::vector<int> cuts;           ///< first unit of stages 1, 2, ...
  std::vector<int> stage_workers;  ///< worker of each stage
  std::vector<WorkerLoad> loads;   ///< by worker
  double bottleneck = 0;           ///< the largest load
  /// No partition that the request allows has a smaller bottleneck.
  double lower_bound = 0;
  [[nodiscard]] bool optimal() const { return bottleneck <= lower_bound * (1 + 1e-9); }
};

/// Returns the partition with the smallest bottleneck within the memory limit.
///
/// With one stage per worker, dynamic programming finds an optimum: the one with the smallest sum of squared
/// loads. O(S n^2) for n units and S stages; O(S^2 n^2) if workers are of several kinds, or have limits of
/// their own, and memory is limited, because any worker may then be left out. With several stages per worker
/// or a general allocation the problem is NP-complete (Pipelined Model Parallelism, section 4). Local search
/// improves the contiguous optimum and a greedy partition; branch and bound then proves the best partition
/// optimal, unless it runs out of `steps`. docs/partition.md has the recurrences. Deterministic.
///
/// Throws InputError for counts below 1, fewer units than stages, costs that are negative or not finite, and
/// a worker that does not exist. Also for contiguous stages where both the kinds of workers and their links
/// differ, and for a memory limit that no found partition keeps; this message has the smallest limit that one
/// keeps.
Partition partition(const PartitionRequest& request);

/// Returns why `cuts`, the first units of stages 1, 2, ..., do not cut a chain of `units` units into stages:
/// "5 is not ascending within the units 1 to 7". Empty if they do.
std::string cuts_problem(std::span<const int> cuts, int units);

/// Loads and bottleneck of given stages. `lower_bound` holds for any cuts with the same `stage_workers`: the
/// mean load and the longest unit. Throws InputError as `partition` does, except for memory above the limit.
Partition evaluate_partition(const PartitionRequest& request, std::vector<int> cuts,
                             std::vector<int> stage_workers);

// The stages of a partition as other frameworks read them. The units belong to a transformer: the first is
// called "embedding", the last "head", and those between them are its blocks. Throws InputError for other
// units, and for a placement that the framework does not have.

/// Returns the options of Megatron-LM for these stages: `--pipeline-model-parallel-size` and
/// `--pipeline-model-parallel-layout`, one line each. Stage s is on worker s mod `workers`. The layout names
/// an embedding E, a block t and the head with its loss L; `t*3` are three blocks, and | ends a stage.
std::string megatron_stages(std::span<const UnitCosts> units, const Partition& partition, int workers);

/// Returns the section `parallelism` of the TOML configuration of torchtitan 0.2, with
/// `module_fqns_per_model_part`: the names of each stage's modules. Stages are placed in a loop, or two per
/// worker in a V. Later versions of torchtitan take the same lists in Python and call the head's "output"
/// "lm_head"; a comment says so.
std::string torchtitan_stages(std::span<const UnitCosts> units, const Partition& partition, int workers);

}  // namespace starpipe::plan
