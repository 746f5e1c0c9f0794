// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plan/simulate/timed_copies.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/homes_to_fit.hpp"
#include "starpipe/plan/simulate/home_ways.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

int partner(const Schedule& schedule, int worker) { return schedule.workers() - 1 - worker; }

// Returns the stashes that the worker sends away, so that it holds at most `limit`: those that are needed
// last.
std::vector<TimedCopy> evicted(const Schedule& ordered, const Timeline& timeline, const Costs& costs,
                               int worker, int limit) {
  std::vector<StashWait> waits;
  std::vector<TimedCopy> stashes;
  for (const JobId id : ordered.order(worker)) {
    const auto [stage, microbatch, pass] = ordered.job(id);
    if (pass != Pass::F) continue;
    const JobId backward = ordered.backward(stage, microbatch);
    const JobId last = ordered.weight_gradient(stage, microbatch);
    if (ordered.recomputes(stage, microbatch) || ordered.compute(backward) != worker ||
        ordered.compute(last) != worker)
      throw InputError(
          "home: bpipe needs stashes whose passes are all on one worker, and none that is made again");
    waits.push_back({ordered.position(id), ordered.position(backward), ordered.position(last)});
    const Link link = costs.peer ? costs.peer->link : costs.link(worker, partner(ordered, worker));
    stashes.push_back({.stage = stage,
                       .microbatch = microbatch,
                       .made = timeline.spans[id].end,
                       .needed = timeline.spans[backward].start,
                       .copy = link.time(costs.size(stage).stash)});
  }
  const auto fates = fates_to_fit(waits, limit, 0);
  if (!fates)
    throw InputError(fmt::format("home: bpipe: worker {} uses more than {} stashes at once", worker, limit));
  std::vector<TimedCopy> copies;
  for (std::size_t i = 0; i < stashes.size(); ++i) {
    if ((*fates)[i].kind == StashFate::Kind::copied) copies.push_back(stashes[i]);
  }
  return copies;
}

// Returns the schedule in which the one of two partners that holds more stashes sends the rest to the other
// one, so that each holds at most `spare` more than their mean; nullopt if some worker would hold more.
std::optional<Schedule> balanced(const Schedule& ordered, const Timeline& timeline, const Costs& costs,
                                 std::span<const int> held, int spare) {
  std::vector<int> limits(held.begin(), held.end());
  std::vector<TimedCopy> all;
  for (int w = 0; w < ordered.workers(); ++w) {
    const int own = held[index(w)];
    const int other = held[index(partner(ordered, w))];
    const int limit = (own + other) / 2 + spare;
    limits[index(w)] = std::min(std::max(own, other), limit);
    if (own <= limit) continue;
    std::vector<TimedCopy> copies = evicted(ordered, timeline, costs, w, limit - 1);
    place_copies(copies);
    all.insert(all.end(), copies.begin(), copies.end());
  }
  Schedule made = with_timed_copies(ordered, timeline, all, [&](int stage, int microbatch) {
    return Home::at(partner(ordered, ordered.compute(ordered.forward(stage, microbatch))));
  });
  const bool fits = std::ranges::equal(stashes_in_order(made), limits, std::less_equal<>{});
  return fits ? std::optional(std::move(made)) : std::nullopt;
}

// Workers x and p - 1 - x are partners. Under 1F1B each holds at most one stash more than their mean, so
// ceil((p + 2) / 2) as in BPipe. Other schedules may need more to spare, even with copies that take no time.
// With enough to spare nothing is sent, so the loop ends.
Schedule with_partners(const Schedule& ordered, const HomeWish& wish) {
  const std::vector<int> held = stashes_in_order(ordered);
  const Timeline timeline = simulate(ordered, wish.costs);
  Costs instant = wish.costs;
  instant.peer = HomeLink{};
  for (int spare = 1;; ++spare) {
    if (auto made = balanced(ordered, timeline, wish.costs, held, spare)) {
      if (spare == 1 || made->copies()) return *std::move(made);
      throw InputError("home: bpipe: no copies balance the memory of partners");
    }
    if (balanced(ordered, timeline, instant, held, spare))
      throw InputError("home: bpipe: copies take too long to balance the memory of partners");
  }
}

const bool registered_bpipe =
    register_home_way({.name = "bpipe",
                       .summary = "on the worker's partner, as many as balance the memory of both",
                       .source = "BPipe: Memory-Balanced Pipeline Parallelism, 2023, section 3",
                       .choose = with_partners});

}  // namespace
}  // namespace starpipe::plan
