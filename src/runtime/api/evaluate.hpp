// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// The outputs of `evaluate`.
struct EvaluateOutputs {
  bool json = false;                            ///< JSON on standard output instead of a line
  std::optional<std::filesystem::path> report;  ///< JSON, with the configuration and the machine
};

/// Runs the forward passes of the schedule on the validation data with the weights of `model.init`, on the
/// ranks of MPI_COMM_WORLD, and prints the mean loss. `configure` returns a configuration with
/// `evaluate.alone`. Collective; errors and exit code are those of `train`.
int evaluate(const std::function<Config()>& configure, const EvaluateOutputs& outputs);

}  // namespace starpipe::runtime
