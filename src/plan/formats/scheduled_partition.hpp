// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/search/partition.hpp"
#include "starpipe/plan/search/layout.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A chain of units to cut for a named schedule, as `starpipe partition` takes it.
struct ScheduledPartition {
  /// Units, workers, links and limits. Allocation, placement and stashes follow from the schedule.
  PartitionRequest request = {};
  /// Name of a schedule. It decides how many stashes each worker holds, and the result has its prediction.
  std::string schedule = "1f1b";
  int microbatches = 1;
  std::optional<int> chunks = {};     ///< stages on each worker; nothing: the schedule's own number
  std::optional<Layout> layout = {};  ///< of several chunks; nothing: loop
  bool general = false;               ///< a worker may get any units
};

struct PartitionResult {
  PartitionRequest request;  ///< with allocation, placement and stashes
  Partition found;
  Costs costs;        ///< of the stages
  Timeline timeline;  ///< of the schedule with these stages; transfers overlap compute
};

/// The best partition for the schedule, and its predicted run. `kinds` of the request must not be empty.
/// Throws RequestError for a part that cannot be followed ("chunks: ...", "layout: ...", "general: ...",
/// "schedule: ...", "microbatches: ...", "units: ..."), and InputError as `partition` and `make_schedule` do.
PartitionResult partition_for(const ScheduledPartition& asked);

}  // namespace starpipe::plan
