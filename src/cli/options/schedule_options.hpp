// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::cli {

/// Adds --option NAME=VALUE, which may be repeated, for the options of a schedule.
void add_schedule_option(CLI::App& command, plan::ScheduleOptions& options,
                         const std::string& help =
                             "Option of the schedule, as `schedule list --long` shows them; may be repeated");

/// Adds --memory-limit and --recompute.
void add_memory_options(CLI::App& command, std::vector<int>& memory_limits, bool& recompute);

/// Cuts the stages of a schedule into shards: --tensor and --tensor-workers.
class TensorOptions {
 public:
  void add_to(CLI::App& command);
  /// Replaces a schedule of stages and their costs by the schedule and the costs of shards. Throws InputError
  /// as plan::tensor_fold does.
  void apply(plan::Schedule& schedule, plan::Costs& costs) const;
  [[nodiscard]] int shards() const { return shards_; }
  /// Returns the number of stages with shards for `whole` stages without.
  [[nodiscard]] std::int64_t stages(std::int64_t whole) const {
    return shards_ > 1 ? whole * shards_ + 1 : whole;
  }

 private:
  int shards_ = 1;
  std::optional<int> workers_each_;
};

/// Adds a hidden option --tensor that is refused, for commands that know only chains. `reason`: why, and what
/// to do instead.
void refuse_tensor(CLI::App& command, const std::string& reason);

}  // namespace starpipe::cli
