// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/registry/registry.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/numbers.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/registration.hpp"
#include "starpipe/plan/registry/slices.hpp"

namespace starpipe::plan {
namespace {

// A function-local static is constructed before the first registration from another file.
std::map<std::string, ScheduleEntry, std::less<>>& registry() {
  static std::map<std::string, ScheduleEntry, std::less<>> entries;
  return entries;
}

std::string names_of(const std::vector<ScheduleOption>& options) {
  std::vector<std::string_view> names;
  for (const ScheduleOption& option : options) names.push_back(option.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// Returns `given` and the defaults of the options that it lacks.
ScheduleOptions complete_options(const ScheduleEntry& entry, ScheduleOptions given) {
  for (const auto& [name, value] : given) {
    const auto found = std::ranges::find(entry.options, name, &ScheduleOption::name);
    if (found == entry.options.end()) {
      throw InputError(
          fmt::format("schedule '{}' has no option '{}' ({})", entry.name, name,
                      entry.options.empty() ? "it has none" : "it has: " + names_of(entry.options)));
    }
    if (const std::string problem =
            range_problem(std::to_string(value), static_cast<std::uint64_t>(found->min),
                          static_cast<std::uint64_t>(found->max));
        !problem.empty())
      throw InputError(fmt::format("schedule '{}': option {} {}", entry.name, name, problem));
  }
  for (const ScheduleOption& option : entry.options) given.emplace(option.name, option.default_value);
  return given;
}

// Throws unless the schedule has the size that was asked for: callers size their tables by the request.
void require_as_asked(const ScheduleRequest& asked, const Schedule& built, const std::string& name) {
  if (built.workers() != asked.workers || built.whole_microbatches() != asked.microbatches) {
    throw BrokenSchedule(
        fmt::format("schedule '{}': asked for {} workers and {} micro-batches, it has {} and {}", name,
                    asked.workers, asked.microbatches, built.workers(), built.whole_microbatches()));
  }
  if (built.slices() != asked.slices)
    throw BrokenSchedule(
        fmt::format("schedule '{}': asked for {} slices, it has {}", name, asked.slices, built.slices()));
  if (asked.graph && built.graph() != *asked.graph) {
    throw BrokenSchedule(
        fmt::format("schedule '{}': asked for a graph of {} stages, it has another one ({} stages)", name,
                    asked.graph->size(), built.stages()));
  }
}

// Throws for a placement that the schedule does not follow, and for groups without which it would be the same
// schedule. Its function should refuse them; a plug-in's may overlook them.
void require_followed(const ScheduleEntry& entry, const ScheduleRequest& asked, const Schedule& built) {
  if (!asked.stage_workers.empty()) {
    // A plug-in may overlook groups that make no sense.
    const int groups = std::max(1, asked.groups.value_or(1));
    const int per_group = std::max(1, asked.workers / groups);
    const bool follows =
        std::cmp_equal(asked.stage_workers.size(), built.stages()) &&
        std::ranges::all_of(built.order(), [&](JobId id) {
          return built.compute(id) % per_group == asked.stage_workers[index(built.job(id).stage)];
        });
    if (!follows) throw RequestError(fmt::format("placement: {} does not follow it", entry.name));
  }
  if (asked.groups.value_or(1) == 1) return;
  ScheduleRequest without = asked;
  without.groups.reset();
  std::optional<Schedule> same;
  try {
    same = entry.build(without);
  } catch (const InputError&) {
    return;  // it needs groups
  }
  if (*same == built) throw RequestError(fmt::format("groups: {} is the same without them", entry.name));
}

// Calls the function of a schedule. Returns a schedule of the requested size, or throws one error that names
// the schedule.
Schedule build(const ScheduleEntry& entry, const ScheduleRequest& request) {
  try {
    Schedule schedule = entry.build(request);
    require_as_asked(request, schedule, entry.name);
    require_followed(entry, request, schedule);
    return schedule;
  } catch (const InputError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw BrokenSchedule(fmt::format("schedule '{}': building it threw: {}", entry.name, error.what()));
  } catch (...) {
    throw BrokenSchedule(
        fmt::format("schedule '{}': building it threw something that is not a std::exception", entry.name));
  }
}

// Throws unless costs with entries of slices have them for the slices of the request.
void require_costs_of(const Costs& costs, int stages, int slices) {
  if (costs.slices == 1) return;
  if (costs.slices != slices)
    throw InputError(fmt::format("costs of {} slices, the schedule has {}", costs.slices, slices));
  for (const std::size_t count : {costs.durations.size(), costs.sizes.size()}) {
    if (count != 1 && count != index(stages) * index(slices))
      throw InputError(
          fmt::format("costs have {} entries for {} stages of {} slices", count, stages, slices));
  }
}

// Returns nullopt if the schedule is not defined for the request.
std::optional<Schedule> try_make(std::string_view name, const ScheduleRequest& request) {
  try {
    return make_schedule(name, request);
  } catch (const BrokenSchedule&) {
    throw;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace

bool register_schedule(ScheduleEntry entry) {
  const std::string name = entry.name;
  if (registry().emplace(name, std::move(entry)).second) return true;
  keep_registration_error(fmt::format("schedule '{}' is registered twice", name));
  return false;
}

std::vector<ScheduleEntry> schedule_entries() {
  require_registrations();
  std::vector<ScheduleEntry> entries;
  for (const auto& [name, entry] : registry()) entries.push_back(entry);
  return entries;
}

const ScheduleEntry& find_schedule(std::string_view name) {
  require_registrations();
  if (const auto found = registry().find(name); found != registry().end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& [known, entry] : registry()) {
    if (entry.alias == name && !name.empty()) return entry;
    names.push_back(known);
  }
  throw InputError(fmt::format("unknown schedule '{}' (known: {})", name, fmt::join(names, ", ")));
}

int default_stages(const ScheduleEntry& entry, int workers, const ScheduleOptions& options,
                   const std::optional<int>& groups) {
  const ScheduleOptions complete = complete_options(entry, options);
  const int of_worker = entry.stages_with ? entry.stages_with(complete) : entry.stages_per_worker;
  if (of_worker < 1 || of_worker > max_stages_per_worker) {
    throw BrokenSchedule(fmt::format("schedule '{}': {} stages per worker, expected 1 to {}", entry.name,
                                     of_worker, max_stages_per_worker));
  }
  // The schedule itself refuses groups that are not equal.
  const bool divides = entry.chain_of_group && groups.value_or(0) > 0 && workers % *groups == 0;
  return of_worker * (divides ? workers / *groups : workers);
}

Schedule make_schedule(std::string_view name, const ScheduleRequest& request) {
  const ScheduleEntry& entry = find_schedule(name);
  if (request.workers < 1 || request.microbatches < 1) {
    throw InputError(fmt::format("schedule '{}': {} workers and {} micro-batches, need at least 1 of each",
                                 name, request.workers, request.microbatches));
  }
  ScheduleRequest complete = request;
  if (!request.memory_limits.empty()) {
    try {
      complete.memory_limits = limits_of_workers(request.memory_limits, request.workers);
    } catch (const InputError& error) {
      throw InputError(fmt::format("schedule '{}': {}", name, error.what()));
    }
  }
  complete.options = complete_options(entry, request.options);
  if (!request.graph)
    complete.graph =
        StageGraph::chain(default_stages(entry, request.workers, request.options, request.groups));
  if (complete.costs) require_costs_of(*complete.costs, complete.graph->size(), request.slices);
  const Costs of_slices = costs_of_slices(complete.costs.value_or(Costs{}), request.slices);
  if (complete.costs) complete.costs = costs_of_microbatches(*std::move(complete.costs));
  if (entry.makes_slices) return build(entry, complete).with_homes(request.homes);
  complete.slices = 1;
  const auto of_whole = [&](int microbatches) {
    complete.microbatches = microbatches;
    return build(entry, complete);
  };
  return with_slices(request.microbatches, request.slices, of_whole, of_slices).with_homes(request.homes);
}

LimitedSchedule make_limited_schedule(std::string_view name, ScheduleRequest request,
                                      const OrderRequest& order, const Costs& costs) {
  if (!order.home_way.empty()) return as_requested(make_schedule(name, request), order, costs);
  request.memory_limits = order.memory_limits;
  const Schedule for_limit = make_schedule(name, request);
  LimitedSchedule result = as_requested(for_limit, order, costs);
  if (order.memory_limits.empty() || order.dynamic) return result;
  request.memory_limits.clear();
  const std::optional<Schedule> own = try_make(name, request);
  if (!own || *own == for_limit) return result;
  const LimitedSchedule unlimited = as_requested(*own, {.memory_limits = order.memory_limits}, costs);
  if (!unlimited.reordering) return order.discipline ? as_requested(*own, order, costs) : unlimited;
  if (!result.reordering) result.reordering = unlimited.reordering;
  return result;
}

CostedSchedule make_costed_schedule(std::string_view name, ScheduleRequest request, OrderRequest order,
                                    const Costs& costs, bool per_share) {
  if (!request.graph)
    request.graph = StageGraph::chain(
        default_stages(find_schedule(name), request.workers, request.options, request.groups));
  const int stages = request.graph->size();
  require_costs_of(costs, stages, request.slices);
  if (per_share && costs.slices > 1) throw InputError("costs of slices are of stages, not of shares");
  Costs of_stages = per_share ? costs_of_stages(costs, request.workers, stages) : costs;
  of_stages = costs_of_slices(std::move(of_stages), request.slices);
  if (per_share) {
    order.memory_limits =
        stage_stashes(std::move(order.memory_limits), static_cast<double>(stages) / request.workers);
  }
  request.costs = with_recomputation(of_stages, request.homes);
  LimitedSchedule made = make_limited_schedule(name, request, order, of_stages);
  return {std::move(made), std::move(of_stages)};
}

}  // namespace starpipe::plan
