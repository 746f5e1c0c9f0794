// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// The policies to compare, and the outputs.
struct Comparison {
  /// Names as `runtime.policy` takes them; no name twice.
  std::vector<std::string> policies;
  int repetitions = 5;
  /// Seed of the order of policies, which is shuffled anew in each repetition.
  std::uint64_t seed = 1;
  bool json = false;                                 ///< print JSON instead of a table
  std::optional<std::filesystem::path> output = {};  ///< JSON
  std::optional<std::filesystem::path> timeline =
      {};  ///< SVG: the prediction and a median run of each policy
};

/// Runs the same task graph under several policies, and prints a table with the median and the spread of
/// their makespans. Each repetition of a policy starts StarPU and the model anew and runs `training.steps`
/// steps; its makespan is the median of the steps after the first. Collective. `configure` and the exit code
/// are as of `train`.
int compare(const std::function<Config()>& configure, const Comparison& comparison);

}  // namespace starpipe::runtime
