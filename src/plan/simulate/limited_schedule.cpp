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
#include "starpipe/plan/schedule/homes_to_fit.hpp"
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

// Returns the ways that `home: auto` tries: all stashes that do not fit are made again; where copies have a
// time, all are copied, or some.
std::vector<FitWays> ways_to_fit(const Costs& costs) {
  constexpr int parts = 4;
  std::vector<FitWays> ways = {{.remade = 1}};
  for (const auto& [home, link] : {std::pair(Home::host, &costs.host), {Home::disk, &costs.disk}}) {
    for (int remade = 0; *link && remade < parts; ++remade) {
      for (const int spare : {0, 1, 2})
        ways.push_back({.copies = home, .remade = static_cast<double>(remade) / parts, .spare = spare});
    }
  }
  return ways;
}

// Returns the schedule with the homes that take the least time. Throws InputError if no homes fit.
Schedule with_cheapest_homes(const Schedule& ordered, const std::vector<int>& limits, const Costs& costs) {
  std::optional<Schedule> best;
  double shortest = 0;
  std::string problem;
  for (const FitWays& ways : ways_to_fit(costs)) {
    try {
      Schedule made = with_homes_to_fit(ordered, limits, ways);
      const double makespan = simulated_makespan(made, costs);
      if (best && makespan >= shortest) continue;
      best = std::move(made);
      shortest = makespan;
    } catch (const InputError& error) {
      if (problem.empty()) problem = error.what();
    }
  }
  if (!best) throw InputError(problem);
  return *std::move(best);
}

LimitedSchedule with_fitting_homes(const Schedule& schedule, const OrderRequest& request,
                                   const Costs& costs) {
  if (request.memory_limits.empty()) throw InputError("home: auto needs a memory limit");
  if (request.dynamic || request.discipline.value_or(Discipline::ordered) != Discipline::ordered)
    throw InputError("home: auto keeps the schedule's order, so the discipline is ordered");
  const std::vector<int> limits =
      smaller_limits(schedule, limits_of_workers(request.memory_limits, schedule.workers()));
  const Schedule ordered =
      schedule.discipline() == Discipline::ordered ? schedule : ordered_as_simulated(schedule, costs);
  return {with_cheapest_homes(ordered, limits, costs).with(Discipline::ordered, limits)};
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
  if (request.homes_to_fit) return with_fitting_homes(schedule, request, costs);
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
