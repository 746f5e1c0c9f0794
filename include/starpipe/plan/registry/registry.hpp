// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/base/error.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"

namespace starpipe::plan {

/// Options of a schedule and their values, by name.
using ScheduleOptions = std::map<std::string, int>;

/// A whole number that a schedule takes besides the numbers of workers and micro-batches, such as the number
/// of waves.
struct ScheduleOption {
  std::string name;
  std::string meaning;  ///< one line for `schedule list --long`
  int default_value = 1;
  int min = 1;  ///< not negative
  int max = std::numeric_limits<int>::max();
};

/// The parameters with which a named schedule is built.
struct ScheduleRequest {
  int workers = 1;
  int microbatches = 1;
  /// Slices K into which each micro-batch is cut, each a micro-batch of the schedule: it has K times
  /// `microbatches`. `make_schedule` cuts, and a schedule's function is called without slices, unless its
  /// entry has `makes_slices`.
  int slices = 1;
  /// Stage graph of the model. When absent, a chain with the schedule's number of stages per worker.
  std::optional<StageGraph> graph = {};
  /// Homes of the stashes (`Schedule::with_homes`): one for all stages, or one for each; empty: as the
  /// schedule has them.
  std::vector<Home> homes = {};
  /// The costs for which schedules that depend on durations (zb-1p, zb-2p, v-zb, 1f1b-star, ...) choose their
  /// order; other schedules ignore them. For stages without a home B includes F (`with_recomputation`). Unit
  /// costs when absent.
  std::optional<Costs> costs = {};
  /// Number of stashes that a worker may hold: one for all workers, or one for each; empty: no limit.
  /// Schedules that are made for a limit (1f1b-star, k-periodic) then have it as their own where it is the
  /// same for all workers; others ignore it.
  std::vector<int> memory_limits = {};
  /// Independent pipelines G of R workers each, W = G * R; micro-batch b goes to group b mod G (data
  /// parallelism).
  std::optional<int> groups = {};
  /// Worker of each stage in its group, one entry per stage, for schedules that place by stage. Empty: stage
  /// s is on worker s.
  std::vector<int> stage_workers = {};
  /// Values of the schedule's options. `make_schedule` adds those that are missing, with their defaults,
  /// before it calls the schedule's function.
  ScheduleOptions options = {};
};

/// The maximum number of stages per worker in a schedule's default chain.
inline constexpr int max_stages_per_worker = 1024;

/// A named schedule: its description, and the function that builds it.
struct ScheduleEntry {
  std::string name;
  /// One line for `schedule list`.
  std::string summary;
  /// The publication (source and section).
  std::string source;
  /// Builds the schedule for a request, whose graph is always given. Throws InputError, naming the value at
  /// fault, when the schedule is not defined for the request.
  std::function<Schedule(const ScheduleRequest&)> build;
  /// Number of stages per worker of the default chain, with the default values of the options.
  int stages_per_worker = 1;
  /// The schedule's name in torch.distributed.pipelining, if it has one there. `make_schedule` takes it too.
  std::string alias = {};
  /// The options that the schedule takes.
  std::vector<ScheduleOption> options = {};
  /// Number of stages per worker of the default chain for these values of all options, where it depends on
  /// them; empty where it does not.
  std::function<int(const ScheduleOptions& options)> stages_with = {};
  /// True if the default chain has stages for the W / G workers of a group, and not for all workers.
  bool chain_of_group = false;
  /// True if the function makes the slices of a request. Otherwise `with_slices` does.
  bool makes_slices = false;
};

/// Registers a schedule. Call it from a file-scope initialiser (`const bool registered = ...`). Returns
/// whether it was added: when the name is taken, the error is kept (starpipe/base/registration.hpp), and the
/// functions below throw it. Not thread-safe.
bool register_schedule(ScheduleEntry entry);

/// Returns all registered schedules, sorted by name. Throws InputError when a registration failed.
std::vector<ScheduleEntry> schedule_entries();

/// Returns the entry of a name or alias. Throws InputError for an unknown one, listing the known names, and
/// when a registration failed.
const ScheduleEntry& find_schedule(std::string_view name);

/// Returns the number of stages of the default chain of this schedule, with these options and groups. Throws
/// InputError, naming schedule and option, for an option that the schedule does not have, and for a value out
/// of range; and BrokenSchedule when the schedule gives a number below 1 or above `max_stages_per_worker` for
/// a worker.
int default_stages(const ScheduleEntry& entry, int workers, const ScheduleOptions& options = {},
                   const std::optional<int>& groups = {});

/// The function of a named schedule broke its contract.
class BrokenSchedule : public InputError {
 public:
  using InputError::InputError;
};

/// A schedule cannot follow a part of its request. The message starts with the part's name: "placement: ",
/// "groups: " or "stages: ". Commands put "--" or "schedule." before it, so that the message names the option
/// or the key.
class RequestError : public InputError {
 public:
  using InputError::InputError;
};

/// Builds the schedule with this name or alias. Throws InputError for an unknown name or a bad request, and
/// BrokenSchedule when the schedule's function throws anything but InputError, or builds a schedule with
/// other numbers of workers, micro-batches or stages than requested. A function that overlooks
/// `stage_workers` or `groups` gives a RequestError: what a user asks for is not ignored.
Schedule make_schedule(std::string_view name, const ScheduleRequest& request);

/// Returns the schedule with this name or alias under `order`, see `as_requested`;
/// ScheduleRequest::memory_limits is not read. If the schedule can make an order for a given limit, it is
/// first made without a limit. If that order keeps the limit, it is the result; otherwise the order made for
/// the limit is, and `reordering` is set. A schedule that is defined only with a limit has no order of its
/// own to keep. `costs`: as `simulate` takes them. Throws as make_schedule and as_requested do.
LimitedSchedule make_limited_schedule(std::string_view name, ScheduleRequest request,
                                      const OrderRequest& order, const Costs& costs);

/// A schedule, and the costs of its stages as `simulate` takes them.
struct CostedSchedule {
  LimitedSchedule made;
  Costs costs;
};

/// Returns the schedule with this name or alias for given costs: `make_limited_schedule` with them as the
/// request's costs. ScheduleRequest::costs and ScheduleRequest::memory_limits are not read. A request without
/// a graph gets the schedule's own chain.
///
/// `costs`: as `simulate` takes them. With `per_share`, costs and limits are of 1/W of the model, see
/// `costs_of_stages` and `stage_stashes`. Throws as make_limited_schedule and costs_of_stages do.
CostedSchedule make_costed_schedule(std::string_view name, ScheduleRequest request, OrderRequest order,
                                    const Costs& costs, bool per_share);

}  // namespace starpipe::plan
