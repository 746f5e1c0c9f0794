// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/homes_to_fit.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

std::optional<std::vector<bool>> dropped_to_fit(std::span<const StashWait> stashes, double limit) {
  enum class Event : std::uint8_t { backward, forward, end };  // at most one of the first two in a place
  std::vector<std::pair<std::pair<std::size_t, Event>, std::size_t>> events;
  for (std::size_t i = 0; i < stashes.size(); ++i) {
    // Where both are in one place, R makes the stash already.
    if (stashes[i].forward < stashes[i].backward) events.push_back({{stashes[i].forward, Event::forward}, i});
    events.push_back({{stashes[i].backward, Event::backward}, i});
    events.push_back({{stashes[i].last, Event::end}, i});
  }
  std::ranges::sort(events);
  std::vector<bool> dropped(stashes.size(), false);
  std::set<std::pair<std::size_t, std::size_t>> waiting;  // place of B, and the stash
  double live = 0;
  for (const auto& [at, i] : events) {
    const StashWait& stash = stashes[i];
    switch (at.second) {
      case Event::forward:
        live += stash.size;
        waiting.emplace(stash.backward, i);
        break;
      case Event::backward:
        if (waiting.erase({stash.backward, i}) == 0) live += stash.size;
        break;
      case Event::end:
        live -= stash.size;
    }
    while (live > limit) {
      if (waiting.empty()) return std::nullopt;
      const std::size_t last = waiting.rbegin()->second;
      waiting.erase(std::prev(waiting.end()));
      dropped[last] = true;
      live -= stashes[last].size;
    }
  }
  return dropped;
}

Schedule with_homes_to_fit(const Schedule& schedule, std::span<const int> limits) {
  if (schedule.forward_only()) return schedule;
  const auto pair_of = [&](int stage, int microbatch) {
    return index(microbatch) * index(schedule.stages()) + index(stage);
  };
  std::vector<Home> homes(index(schedule.stages()) * index(schedule.microbatches()), Home::worker);
  std::vector<std::vector<std::pair<int, int>>> pairs(index(schedule.workers()));  // stage and micro-batch
  for (int b = 0; b < schedule.microbatches(); ++b) {
    for (int s = 0; s < schedule.stages(); ++s) {
      const JobId backward = schedule.backward(s, b);
      const int worker = schedule.compute(backward);
      for (const JobId id :
           {schedule.forward(s, b), schedule.stash_maker(s, b), schedule.weight_gradient(s, b)}) {
        if (schedule.compute(id) == worker) continue;
        throw InputError(
            fmt::format("{}: home: auto needs the passes of a stash on one worker, but {} runs on worker {} "
                        "and {} on {}",
                        schedule.name(), to_string(schedule.job(backward)), worker,
                        to_string(schedule.job(id)), schedule.compute(id)));
      }
      pairs[index(worker)].emplace_back(s, b);
    }
  }
  for (std::size_t w = 0; w < pairs.size(); ++w) {
    std::vector<StashWait> stashes;
    for (const auto& [s, b] : pairs[w]) {
      const JobId backward = schedule.backward(s, b);
      const std::size_t place = schedule.position(backward);
      const std::size_t last =
          std::max<std::size_t>(place, schedule.position(schedule.weight_gradient(s, b)));
      const std::size_t made = schedule.position(schedule.stash_maker(s, b));
      // A stash that R makes already cannot be dropped.
      stashes.push_back({made, schedule.recomputes(s, b) ? made : place, last});
    }
    const auto dropped = dropped_to_fit(stashes, limits[w]);
    if (!dropped) {
      throw InputError(
          fmt::format("{}: worker {} uses more stashes at once than its memory limit of {}, whatever is "
                      "computed again",
                      schedule.name(), w, limits[w]));
    }
    for (std::size_t i = 0; i < stashes.size(); ++i) {
      const auto& [s, b] = pairs[w][i];
      if ((*dropped)[i] || schedule.recomputes(s, b)) homes[pair_of(s, b)] = Home::none;
    }
  }
  return schedule.with_homes([&](int s, int b) { return homes[pair_of(s, b)]; });
}

}  // namespace starpipe::plan
