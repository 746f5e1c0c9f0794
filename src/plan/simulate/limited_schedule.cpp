// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/limited_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/home_ways.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

std::vector<int> own_limits(const Schedule& schedule) {
  return {schedule.memory_limits().begin(), schedule.memory_limits().end()};
}

std::vector<int> smaller_limits(const Schedule& schedule, std::vector<int> limits) {
  const std::vector<int> own = own_limits(schedule);
  for (std::size_t w = 0; w < own.size(); ++w) limits[w] = std::min(limits[w], own[w]);
  return limits;
}

std::optional<Reordering> first_excess(const Schedule& ordered, const std::vector<int>& limits) {
  const std::vector<int> held = stashes_in_order(ordered);
  for (std::size_t w = 0; w < held.size(); ++w) {
    if (held[w] > limits[w]) return Reordering{static_cast<int>(w), held[w], limits[w]};
  }
  return std::nullopt;
}

// Returns the schedule with the homes of a named way.
LimitedSchedule with_named_homes(const Schedule& schedule, const OrderRequest& request, const Costs& costs) {
  const HomeWay& way = find_home_way(request.home_way);
  if (way.needs_limits && request.memory_limits.empty())
    throw InputError(fmt::format("home: {} needs a memory limit", way.name));
  if (request.dynamic || request.discipline.value_or(Discipline::ordered) != Discipline::ordered)
    throw InputError(
        fmt::format("home: {} keeps the schedule's order, so the discipline is ordered", way.name));
  std::vector<int> limits = own_limits(schedule);
  if (!request.memory_limits.empty())
    limits = smaller_limits(schedule, limits_of_workers(request.memory_limits, schedule.workers()));
  const Schedule ordered =
      schedule.discipline() == Discipline::ordered ? schedule : ordered_as_simulated(schedule, costs);
  if (ordered.copies())
    throw InputError(
        fmt::format("{}: home: {} does not apply where stashes are copied", schedule.name(), way.name));
  return {way.choose(ordered.with(Discipline::ordered), {limits, costs}).with(Discipline::ordered, limits)};
}

}  // namespace

std::vector<int> limits_of_workers(std::span<const int> limits, int workers) {
  if (limits.size() != 1 && limits.size() != index(workers)) {
    throw InputError(fmt::format("{} memory limits for {} workers; give one for all, or one for each",
                                 limits.size(), workers));
  }
  if (std::ranges::min(limits) < 1) {
    throw InputError(fmt::format("a memory limit of {} stashes, need at least 1", std::ranges::min(limits)));
  }
  if (limits.size() == 1) return std::vector<int>(index(workers), limits.front());
  return {limits.begin(), limits.end()};
}

std::vector<int> stage_stashes(std::vector<int> limits, double parts) {
  for (int& limit : limits) {
    const double fitting = std::floor(limit * parts + 1e-9);
    limit = static_cast<int>(std::min(fitting, double{std::numeric_limits<int>::max()}));
  }
  return limits;
}

LimitedSchedule as_requested(const Schedule& schedule, const OrderRequest& request, const Costs& costs) {
  if (!request.home_way.empty()) return with_named_homes(schedule, request, costs);
  if (request.memory_limits.empty()) {
    if (!request.discipline) return {schedule};
    return {schedule.with(*request.discipline, own_limits(schedule))};
  }
  std::vector<int> limits =
      smaller_limits(schedule, limits_of_workers(request.memory_limits, schedule.workers()));
  // Greedy keeps no limit: `check` refuses the two together, whoever asks for greedy.
  const bool greedy = schedule.discipline() == Discipline::greedy;
  const Discipline discipline =
      request.discipline.value_or(greedy ? Discipline::greedy : Discipline::bounded);
  if (discipline != Discipline::bounded) return {schedule.with(discipline, std::move(limits))};
  const bool may_keep = !request.discipline && !request.dynamic;
  if (may_keep && limits == own_limits(schedule)) return {schedule};
  const Schedule ordered =
      schedule.discipline() == Discipline::ordered ? schedule : ordered_as_simulated(schedule, costs);
  const std::optional<Reordering> reordering = first_excess(ordered, limits);
  if (may_keep && !reordering) return {ordered.with(Discipline::ordered, std::move(limits))};
  if (schedule.copies() && reordering) {
    throw InputError(
        fmt::format("{}: worker {} holds {} stashes in the order of n, above the memory limit of {}; a "
                    "schedule that copies stashes keeps its order",
                    schedule.name(), reordering->worker, reordering->held, reordering->limit));
  }
  return {schedule.with(Discipline::bounded, std::move(limits)), reordering};
}

std::string describe_reordering(const std::string& name, const std::optional<Reordering>& reordering) {
  if (!reordering) return "";
  return fmt::format(
      "not in {}'s own order: in it worker {} would hold {} stashes, above the memory limit of {}\n", name,
      reordering->worker, reordering->held, reordering->limit);
}

}  // namespace starpipe::plan
