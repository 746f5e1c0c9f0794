// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Costs of one micro-batch in one unit of a chain: layers that are never separated.
struct UnitCosts {
  std::string name = {};
  Durations time = {.F = 0, .B = 0, .W = 0};  ///< on devices of kind 0
  StageSizes sizes = {};
  std::vector<Durations> others = {};  ///< on devices of kinds 1, 2, ...
  /// By kind of device: the times of each slice of the micro-batch's sequences, in order; empty: not
  /// measured.
  std::vector<std::vector<Durations>> slices = {};

  [[nodiscard]] const Durations& on(int kind) const { return kind == 0 ? time : others[index(kind - 1)]; }
};

/// Parameters that several units use, besides the units' own: SharedWeights before the chain is cut.
struct SharedUnits {
  std::string name = {};
  std::vector<int> units = {};  ///< ascending
  std::uint64_t weights = 0;    ///< bytes, as in StageSizes
  std::uint64_t master = 0;

  [[nodiscard]] std::uint64_t updated() const { return master > 0 ? master : weights; }
  friend bool operator==(const SharedUnits&, const SharedUnits&) = default;
};

/// The units of a chain, and the devices that their times were measured on.
struct Profile {
  /// Kinds of devices ("cpu", "cuda"): `UnitCosts::on(i)` is the time on devices[i]. Empty: one kind without
  /// a name.
  std::vector<std::string> devices = {};
  std::vector<UnitCosts> units = {};
  std::vector<SharedUnits> shared = {};
  std::vector<int> slice_sizes = {};  ///< tokens of each slice of a sequence; empty without slices

  /// Returns the kind of each worker's device, for PartitionRequest::kinds. `wanted` names the device of each
  /// worker, or one device for all. If the profile's kind has no name, any device will do, but the same for
  /// all workers. Throws InputError for a device that has no times.
  [[nodiscard]] std::vector<int> kinds_of(std::span<const std::string> wanted, int workers) const;
};

/// Cuts into `stages` stages with numbers of units as equal as possible: the naive partition of Separability.
std::vector<int> equal_cuts(int units, int stages);

/// Returns the costs of the stages, for `simulate`: times and sizes are summed over a stage's units,
/// activation and gradient come from its last unit. `kinds[s]` is the kind of stage s's device; empty: all 0.
/// `shared`: weights of several units; the costs have them as weights of the stages with these units.
/// `slices`: if all units have times of so many slices, the costs have durations of each stage and slice, and
/// the sizes of whole micro-batches for each slice.
Costs stage_costs(std::span<const UnitCosts> units, std::span<const int> cuts,
                  std::span<const int> kinds = {}, std::span<const SharedUnits> shared = {}, int slices = 1);

/// `PartitionRequest::stashes` of a schedule: the peak number of stashes of each stage, from the last stage
/// to the first, in a run in which F, B and W all take 1. For 1F1B this is 1, 2, ... up to its number of
/// micro-batches. Exact for ordered schedules under any costs. Throws InputError when the schedule cannot
/// finish. O(jobs log jobs).
std::vector<int> stashes_held(const Schedule& schedule);

/// Returns the worker that computes each stage, or nullopt if several workers compute some stage.
std::optional<std::vector<int>> stage_workers_of(const Schedule& schedule);

}  // namespace starpipe::plan
