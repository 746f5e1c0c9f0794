// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/base/error.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// What a user asks of a named schedule.
struct ScheduleRequest {
  int workers = 1;
  int microbatches = 1;
  /// Stage graph of the model; a chain of as many stages a worker as the schedule has when absent.
  std::optional<StageGraph> graph = {};
  /// Any schedule with recomputation (`Schedule::recompute`).
  bool recompute = false;
  /// What the order of the schedules that look at durations is made for (zb-1p, zb-2p, v-zb, 1f1b-star, ...);
  /// other schedules are the same for all costs. As `simulate` takes them: with recomputation B's have F's in
  /// them. Unit costs when absent.
  std::optional<Costs> costs = {};
  /// Stashes a worker may hold, for schedules that are made for a limit (1f1b-star, k-periodic) and have it
  /// as their memory limits then; others ignore it.
  std::optional<int> memory_limit = {};
  /// Independent pipelines G of the looped schedules; W = G * R.
  std::optional<int> groups = {};
  /// Worker of each stage, one entry a stage, for schedules that place by stage; stage s on worker s
  /// when empty.
  std::vector<int> stage_workers = {};
};

/// A named schedule: what it is, and the function that builds it.
struct ScheduleEntry {
  std::string name;
  /// One line for `schedule list`.
  std::string summary;
  /// Where it was published (source and section).
  std::string source;
  /// Gets a request with a graph. Throws InputError, naming the value at fault, for one that the definition
  /// has no answer to.
  std::function<Schedule(const ScheduleRequest&)> build;
  /// Stages of the default chain, per worker.
  int stages_per_worker = 1;
  /// The name in torch.distributed.pipelining, where it has the schedule; `make_schedule` takes it too.
  std::string alias = {};
};

/// Adds a name; call it from a file-scope initialiser (`const bool registered = ...`). Returns true.
/// Throws InputError when the name is taken. Not thread-safe.
bool register_schedule(ScheduleEntry entry);

/// All names, sorted.
std::vector<ScheduleEntry> schedule_entries();

/// The entry of a name or alias. Throws InputError for an unknown one, listing the known names.
const ScheduleEntry& find_schedule(std::string_view name);

/// The function of a named schedule did not keep to its contract.
class BrokenSchedule : public InputError {
 public:
  using InputError::InputError;
};

/// Builds `name`, or the schedule whose alias it is. Throws InputError for an unknown name or a bad request;
/// BrokenSchedule when its function throws anything but InputError, or builds a schedule of other workers,
/// micro-batches or stages than asked for.
Schedule make_schedule(std::string_view name, const ScheduleRequest& request);

}  // namespace starpipe::plan
