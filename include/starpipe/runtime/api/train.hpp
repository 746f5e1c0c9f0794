// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Files that a training run writes. Each but `metrics` is written under a temporary name first, so existing
/// files are replaced only if the run succeeds.
struct TrainOutputs {
  std::optional<std::filesystem::path> report;    ///< JSON
  std::optional<std::filesystem::path> html;      ///< the report as a page
  std::optional<std::filesystem::path> trace;     ///< Chrome/Perfetto trace, predicted and measured
  std::optional<std::filesystem::path> timeline;  ///< SVG, predicted above measured
  /// A line of JSON for each step, written when the step has ended. It must not have content before the run,
  /// but for the record of a run that is resumed.
  std::optional<std::filesystem::path> metrics;
  std::optional<std::filesystem::path> save_weights;  ///< safetensors
};

/// Trains as the configuration says, on the ranks of MPI_COMM_WORLD, or on one rank without an MPI launcher.
/// Collective: `configure` is called on every rank, and must return the same configuration on each or throw
/// InputError. Rank 0 prints progress to standard error, and a table of predicted and measured values to
/// standard output. Under a launcher, when standard error is not a terminal, the last step's line goes to
/// standard output, before the table.
///
/// Initialises and finalises MPI and StarPU, so a process may call it once. Returns the exit code: 0 for
/// success; 1 if the run failed; 2 after bad input on any rank, for which one line is printed;
/// `status_of_stopped_run`. A lost rank ends the job by MPI_Abort.
///
/// For StarPU's sake some environment variables STARPU_*, and OpenBLAS's number of threads, have other values
/// during the call (docs/extending.md lists them). Call it while no other thread uses the environment.
/// `resume`: goes on from the newest checkpoint in `checkpoint.folder` that is whole, and begins with the
/// first step when there is none.
int train(const std::function<Config()>& configure, const TrainOutputs& outputs, bool resume = false);

}  // namespace starpipe::runtime
