// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/explain/idle_causes.hpp"
#include "plan/explain/recorded_step.hpp"

namespace starpipe::plan {

/// A time of the critical path.
struct PathPart {
  enum class Kind : std::uint8_t {
    compute,   ///< the job runs
    transfer,  ///< its input is under way
    runtime,   ///< it could start and did not
  };
  double start = 0;
  double end = 0;
  Kind kind = Kind::compute;
  JobId job = 0;
  int from = -1;  ///< transfer: the worker that sends
};

/// Returns the chain of jobs and waits that decides the makespan. It is found backwards, from the job that
/// ended last. Each job is preceded by what its start waited for last: the job before it on its worker, or a
/// result from another worker. If both ended at the same time, it is the job before on the worker. The parts
/// are in the order of time, and each begins where the one before ends, so they sum to the makespan. Parts
/// without length are left out. O(jobs).
std::vector<PathPart> critical_path(const RecordedStep& step);

/// The parts of the critical path, summed.
struct PathSummary {
  struct Jobs : Kernel {
    int count = 0;
    double seconds = 0;
  };
  std::vector<Jobs> jobs;       ///< by kind, the largest time first
  std::vector<LinkWait> links;  ///< the largest time first
  double runtime = 0;           ///< seconds
};
PathSummary summary(std::span<const PathPart> path, const Schedule& as_run);

}  // namespace starpipe::plan
