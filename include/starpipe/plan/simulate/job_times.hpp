// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace starpipe::plan {

/// Times of single jobs, which replace those that `Costs` gives for all jobs of a stage. Each vector is by
/// JobId with `Schedule::id_count()` entries, in the unit of the costs; entries of ids without a job are not
/// read. An empty vector replaces nothing.
struct JobTimes {
  /// How long the job computes.
  std::vector<double> duration = {};
  /// For a job that waits for jobs on other workers: the time from the end of the last of these until all
  /// that it reads from there has arrived. For a job that only takes its weights from another worker: the
  /// time from time 0 until they have arrived. Other jobs receive nothing, and their entries are not read.
  /// Without prefetch: how long the worker fetches the job's inputs.
  std::vector<double> transfer = {};
};

}  // namespace starpipe::plan
