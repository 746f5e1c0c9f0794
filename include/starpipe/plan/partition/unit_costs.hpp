// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// What one micro-batch costs in a unit of a chain, or in units that are never separated.
struct UnitCosts {
  std::string name = {};
  Durations time = {.F = 0, .B = 0, .W = 0};
  StageSizes sizes = {};
  /// On further kinds of devices, 1, 2, ...; `time` is that of kind 0.
  std::vector<Durations> others = {};

  [[nodiscard]] const Durations& on(int kind) const {
    return kind == 0 ? time : others[static_cast<std::size_t>(kind) - 1];
  }
};

/// Units, and whose times they have.
struct Profile {
  /// Kinds of devices ("cpu", "cuda"): `UnitCosts::on(i)` is of devices[i]. Empty: of one that has no name.
  std::vector<std::string> devices = {};
  std::vector<UnitCosts> units = {};

  /// By worker, for PartitionRequest::kinds, `wanted` being the device of each, or of all. Times without a
  /// name are anybody's, but not of two kinds. Throws InputError for a device that has no times.
  [[nodiscard]] std::vector<int> kinds_of(std::span<const std::string> wanted, int workers) const;
};

/// Cuts into `stages` stages of as equal a number of units as possible, the naive partition of source 001.
std::vector<int> equal_cuts(int units, int stages);

/// Costs of the stages, for `simulate`: sums over their units, and the output of the last one. `kinds`: of
/// the device of each stage; empty: all 0.
Costs stage_costs(std::span<const UnitCosts> units, std::span<const int> cuts,
                  std::span<const int> kinds = {});

}  // namespace starpipe::plan
