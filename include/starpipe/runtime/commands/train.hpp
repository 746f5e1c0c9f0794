// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// Files that a training run writes, all to a temporary name first. Existing files are replaced only when
/// the run succeeded.
struct TrainOutputs {
  std::optional<std::filesystem::path> report;        ///< JSON
  std::optional<std::filesystem::path> trace;         ///< Chrome/Perfetto trace, predicted and measured
  std::optional<std::filesystem::path> timeline;      ///< SVG, predicted above measured
  std::optional<std::filesystem::path> save_weights;  ///< safetensors
};

/// Trains as the configuration says, on the ranks of MPI_COMM_WORLD (one when not started by an MPI
/// launcher). Collective: `configure` is called on every rank and gives the same configuration on each, or
/// throws InputError, on any of them. Rank 0 prints progress to standard error
/// and the predicted-versus-measured table to standard output.
///
/// Initialises and finalises MPI and StarPU, so a process may call it once. Returns the exit code: 0, or 2
/// after printing one line on bad input (whichever rank found it), or 1 when the run failed. A rank that
/// is lost ends the job by MPI_Abort.
int train(const std::function<Config()>& configure, const TrainOutputs& outputs);

}  // namespace starpipe::runtime
