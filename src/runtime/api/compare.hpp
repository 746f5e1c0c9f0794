// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// What to compare, and the outputs.
struct Comparison {
  /// Names as `runtime.policy` takes them, at least one; no name twice.
  std::vector<std::string> policies;
  /// Names as `schedule.name` takes them; no schedule twice. Each runs in place of the configured schedule,
  /// under every policy. Empty: the configured schedule runs.
  std::vector<std::string> schedules = {};
  int repetitions = 5;
  /// Seed of the order of runs, which is shuffled anew in each repetition.
  std::uint64_t seed = 1;
  bool json = false;                                 ///< print JSON instead of a table
  std::optional<std::filesystem::path> output = {};  ///< JSON
  /// SVG: the prediction of each schedule, and a median run of each policy under it
  std::optional<std::filesystem::path> timeline = {};
  std::optional<std::filesystem::path> html = {};  ///< the same runs as a page
};

/// Runs the same work under several schedules and policies, and prints a table with the median and the
/// spread of their makespans. Each repetition of a schedule under a policy starts StarPU and the model anew
/// and runs `training.steps` steps; its makespan is the median of the steps after the first. Collective.
/// `configure` and the exit code are as of `train`.
///
/// Schedules may need different numbers of stages. The model is then cut differently. With `runtime.emulate`
/// a time that is one for all stages is scaled, so that the work is the same: it is the time of a stage of
/// the configured schedule.
int compare(const std::function<Config()>& configure, const Comparison& comparison);

}  // namespace starpipe::runtime
