// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// What to verify, and the outputs.
struct VerifyRequest {
  std::optional<int> steps = {};         ///< at most `training.steps`; 3, or fewer where a run has fewer
  std::optional<double> tolerance = {};  ///< relative; nothing: what rounding explains (docs/verify.md)
  bool derivatives = true;               ///< whether to check the passes by finite differences, too
  /// Safetensors files of another framework, with the names and shapes of the weights: the gradients of the
  /// first step, before clipping and averaged over the micro-batches; and the weights after the last step
  /// that is compared.
  std::optional<std::filesystem::path> against_gradients = {};
  std::optional<std::filesystem::path> against_weights = {};
  bool json = false;                                 ///< print JSON instead of a table
  std::optional<std::filesystem::path> report = {};  ///< JSON
};

/// Trains the first steps of the configured run, and after each step compares it with the same step computed
/// by one job after the other on rank 0, without the task graph and StarPU: losses, gradients, their norm,
/// the update. Compares them with the files of `against_gradients` and `against_weights`, too. Prints a table
/// on rank 0. Collective; `configure` and the exit code are as of `train`, and the exit code is 1 also if
/// something differs: one line on standard error names the first difference.
int verify(const std::function<Config()>& configure, const VerifyRequest& request);

}  // namespace starpipe::runtime
