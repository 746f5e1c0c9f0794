// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plan/simulate/homes_at_peers.hpp"
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

// Returns the ways that also use other workers, where copies to them have a time.
std::vector<FitWays> ways_with_peers(const Costs& costs) {
  if (!costs.peer) return {};
  std::vector<FitWays> ways = ways_to_fit(costs);
  std::erase_if(ways, [](const FitWays& way) { return way.remade == 1; });
  for (const int spare : {0, 1, 2}) ways.push_back({.copies = Home::none, .remade = 0, .spare = spare});
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
    if (best && makespan >= shortest * (1 - 1e-9)) return;
    best = std::move(made);
    shortest = makespan;
  };
  std::string problem;
  const auto attempt = [&](const auto& choose) {
    try {
      consider(choose());
    } catch (const InputError& error) {
      if (problem.empty()) problem = error.what();
    }
  };
  for (const FitWays& ways : ways_to_fit(wish.costs))
    attempt([&] { return with_homes_to_fit(ordered, wish.limits, ways); });
  const auto attempt_way = [&](const char* name) {
    attempt([&] {
      Schedule made = find_home_way(name).choose(ordered, wish);
      if (!keeps(made, wish.limits)) throw InputError(fmt::format("home: {}: above the memory limit", name));
      return made;
    });
  };
  if (wish.costs.host) attempt_way("pipeoffload");
  const std::vector<double> limits(wish.limits.begin(), wish.limits.end());
  for (const FitWays& ways : ways_with_peers(wish.costs))
    attempt([&] { return with_homes_at_peers(ordered, limits, wish.costs, ways); });
  if (wish.costs.peer && wish.costs.workers_of_rank == 1) attempt_way("bpipe");
  if (!best) throw InputError(problem);
  return *std::move(best);
}

const bool registered_auto = register_home_way(
    {.name = "auto",
     .summary =
         "none for as few stashes as the memory limit needs; with a time for copies also host, disk or "
         "another worker",
     .source = "L. A. Belady, A study of replacement algorithms for a virtual-storage computer, 1966",
     .needs_limits = true,
     .choose = with_cheapest_homes});

}  // namespace
}  // namespace starpipe::plan
