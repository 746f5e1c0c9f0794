// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <vector>

#include "plan/explain/idle_causes.hpp"
#include "starpipe/plan/explain/recorded_step.hpp"

namespace starpipe::plan {

/// Seconds by worker and cause (index of IdleCause).
std::vector<std::array<double, idle_cause_count>> idle_seconds(std::span<const IdlePart> parts, int workers);

/// Idle time that waits for jobs of one kind.
struct ProducerWait {
  int stage = 0;
  Pass pass = Pass::F;
  int worker = 0;      ///< that runs these jobs
  double seconds = 0;  ///< sum over all workers that waited
};
/// The jobs that workers waited for (causes producer and order), the largest sum first. When worker A waits
/// for worker B, the time counts for the job that B runs. When B waits too, for worker C, the time counts for
/// the job that C runs, and so on along the chain. So the result names the slow stage, not the stages that
/// wait for it. When the chain ends at a transfer or at the runtime, the time counts for no job.
/// `parts`: those of `step`. O(jobs log jobs + jobs * workers).
std::vector<ProducerWait> producer_waits(std::span<const IdlePart> parts, const RecordedStep& step);

/// Idle time while data was under way.
struct LinkWait {
  int from = 0;
  int to = 0;
  double seconds = 0;  ///< cause transfer
};
/// The largest first.
std::vector<LinkWait> link_waits(std::span<const IdlePart> parts);

}  // namespace starpipe::plan
