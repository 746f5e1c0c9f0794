// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "starpipe/base/error.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/homes_to_fit.hpp"
#include "starpipe/plan/simulate/home_ways.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

// Returns the ways to save memory that are tried: all stashes that do not fit are made again; where copies
// have a time, all are copied, or some.
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

bool keeps(const Schedule& schedule, const std::vector<int>& limits) {
  return std::ranges::equal(stashes_in_order(schedule), limits, std::less_equal<>{});
}

// Returns the schedule with the homes that take the least time. Throws InputError if no homes fit.
Schedule with_cheapest_homes(const Schedule& ordered, const HomeWish& wish) {
  std::optional<Schedule> best;
  double shortest = 0;
  const auto consider = [&](Schedule made) {
    const double makespan = simulated_makespan(made, wish.costs);
    if (best && makespan >= shortest) return;
    best = std::move(made);
    shortest = makespan;
  };
  std::string problem;
  const auto try_homes = [&](const auto& choose) {
    try {
      consider(choose());
    } catch (const InputError& error) {
      if (problem.empty()) problem = error.what();
    }
  };
  for (const FitWays& ways : ways_to_fit(wish.costs))
    try_homes([&] { return with_homes_to_fit(ordered, wish.limits, ways); });
  if (wish.costs.host) {
    Schedule timed = find_home_way("pipeoffload").choose(ordered, wish);
    if (keeps(timed, wish.limits)) try_homes([&] { return std::move(timed); });
  }
  if (!best) throw InputError(problem);
  return *std::move(best);
}

const bool registered_auto = register_home_way(
    {.name = "auto",
     .summary = "none for as few stashes as the memory limit needs; with a time for copies also host or disk",
     .source = "L. A. Belady, A study of replacement algorithms for a virtual-storage computer, 1966",
     .needs_limits = true,
     .choose = with_cheapest_homes});

}  // namespace
}  // namespace starpipe::plan
