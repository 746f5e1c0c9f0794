// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "plan/simulate/timed_copies.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/home_ways.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

// Returns the stashes of one worker. `busy`: gets the time of its passes.
std::map<int, std::vector<TimedCopy>> by_stage(const Schedule& ordered, const Timeline& timeline,
                                               const Costs& costs, int worker, double& busy) {
  Link shared = costs.home_link(Home::host).link;
  shared.beta *= costs.home_link(Home::host).workers;
  std::map<int, std::vector<TimedCopy>> stages;
  for (const JobId id : ordered.order(worker)) {
    const auto [stage, microbatch, pass] = ordered.job(id);
    busy += costs.duration(stage).of(pass);
    const JobId backward = ordered.backward(stage, microbatch);
    if (pass != Pass::F || ordered.recomputes(stage, microbatch) || ordered.compute(backward) != worker)
      continue;
    stages[stage].push_back({.stage = stage,
                             .microbatch = microbatch,
                             .made = timeline.spans[id].end,
                             .needed = timeline.spans[backward].start,
                             .copy = shared.time(costs.size(stage).stash)});
  }
  return stages;
}

// Returns the stashes of the stages with the longest lives, as many as the channel lets through in the time
// of the worker's passes. Of the last one of these stages a part is copied, evenly.
std::vector<TimedCopy> longest_lives(const Schedule& ordered, const Timeline& timeline, const Costs& costs,
                                     int worker) {
  double busy = 0;
  std::vector<std::vector<TimedCopy>> longest_first;
  for (auto& [stage, all] : by_stage(ordered, timeline, costs, worker, busy))
    longest_first.push_back(std::move(all));
  std::ranges::stable_sort(longest_first, std::greater<>{}, [](const std::vector<TimedCopy>& all) {
    double sum = 0;
    for (const TimedCopy& stash : all) sum += stash.needed - stash.made;
    return sum / static_cast<double>(all.size());
  });
  std::vector<TimedCopy> chosen;
  for (const std::vector<TimedCopy>& all : longest_first) {
    const double time = all.front().copy * static_cast<double>(all.size());
    const double part = time > busy ? busy / time : 1;
    const auto copied = [&](std::size_t first) {
      return std::floor(static_cast<double>(first) * part + 1e-9);
    };
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (copied(i + 1) > copied(i)) chosen.push_back(all[i]);
    }
    busy = std::max(0.0, busy - time);
  }
  return chosen;
}

Schedule with_longest_lives_on_host(const Schedule& ordered, const HomeWish& wish) {
  const Timeline timeline = simulate(ordered, wish.costs);
  std::vector<TimedCopy> all;
  for (int worker = 0; worker < ordered.workers(); ++worker) {
    std::vector<TimedCopy> copies = longest_lives(ordered, timeline, wish.costs, worker);
    place_copies(copies);
    all.insert(all.end(), copies.begin(), copies.end());
  }
  return with_timed_copies(ordered, timeline, all, [](int, int) { return Home::host; });
}

const bool registered_pipeoffload = register_home_way(
    {.name = "pipeoffload",
     .summary = "host for the stashes that wait longest, as many as can be copied without delay",
     .source = "PipeOffload: Improving Scalability of Pipeline Parallelism with Memory Optimization, 2025, "
               "section 3",
     .choose = with_longest_lives_on_host});

}  // namespace
}  // namespace starpipe::plan
