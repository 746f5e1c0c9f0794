// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/timed_copies.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <tuple>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

// The place of a job in the order of times.
struct Place {
  std::int64_t time;  // rounded
  int rank;           // at one time
  Job job;
};

bool takes_memory(Pass pass) { return pass == Pass::F || pass == Pass::R || pass == Pass::L; }

// At one time: passes that end, O, passes that start, then L, for whose end a pass of the other worker would
// wait. A copy without length frees the memory of its other end at once, so there L comes before O.
int rank_of(Pass pass, double copy = 1) {
  if (pass == Pass::O) return copy > 0 ? 1 : 3;
  if (pass == Pass::L) return copy > 0 ? 5 : 2;
  return takes_memory(pass) ? 4 : 0;
}

}  // namespace

void place_copies(std::vector<TimedCopy>& copies) {
  while (!copies.empty()) {
    double free = -std::numeric_limits<double>::infinity();
    std::ranges::stable_sort(copies, {}, &TimedCopy::made);
    for (TimedCopy& stash : copies) free = stash.out = std::max(free, stash.made) + stash.copy;
    double next = std::numeric_limits<double>::infinity();
    std::ranges::stable_sort(copies, std::greater<>{}, &TimedCopy::needed);
    for (TimedCopy& stash : copies) next = stash.back = std::min(next, stash.needed) - stash.copy;
    const auto worst =
        std::ranges::min_element(copies, {}, [](const TimedCopy& stash) { return stash.back - stash.out; });
    if (worst->back >= worst->out) return;
    copies.erase(worst);
  }
}

Schedule with_timed_copies(const Schedule& ordered, const Timeline& timeline,
                           const std::vector<TimedCopy>& copies,
                           const std::function<Home(int stage, int microbatch)>& home) {
  constexpr double ticks = 1e9;  // of the makespan: times that differ by rounding are equal
  const auto rounded = [&](double time) {
    return timeline.makespan > 0 ? std::llround(time / timeline.makespan * ticks) : 0;
  };
  std::vector<Place> places;
  for (const JobId id : ordered.order()) {
    const Job job = ordered.job(id);
    const Span& span = timeline.spans[id];
    places.push_back({rounded(takes_memory(job.pass) ? span.start : span.end), rank_of(job.pass), job});
  }
  std::map<std::pair<int, int>, const TimedCopy*> copied;
  for (const TimedCopy& stash : copies) {
    copied.emplace(std::pair(stash.stage, stash.microbatch), &stash);
    places.push_back(
        {rounded(stash.out), rank_of(Pass::O, stash.copy), {stash.stage, stash.microbatch, Pass::O}});
    places.push_back(
        {rounded(stash.back), rank_of(Pass::L, stash.copy), {stash.stage, stash.microbatch, Pass::L}});
  }
  std::ranges::stable_sort(places, {}, [](const Place& place) { return std::pair(place.time, place.rank); });
  std::map<Job, std::int64_t> priority;
  std::vector<std::vector<std::int64_t>> of_passes(index(ordered.workers()));  // ascending
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Job& job = places[i].job;
    const auto n = static_cast<std::int64_t>(i);
    priority[job] = n;
    if (!is_copy(job.pass)) of_passes[index(ordered.compute(*ordered.find(job)))].push_back(n);
  }
  // Passes without length may have changed places.
  for (int worker = 0; worker < ordered.workers(); ++worker) {
    const auto row = ordered.order(worker);
    for (std::size_t i = 0; i < row.size(); ++i) priority[ordered.job(row[i])] = of_passes[index(worker)][i];
  }
  ScheduleSpec spec = ordered.spec();
  spec.home = [&](int stage, int microbatch) {
    return copied.contains({stage, microbatch}) ? home(stage, microbatch) : ordered.home(stage, microbatch);
  };
  spec.priority = [&](const Job& job) { return priority.at(job); };
  return Schedule(spec);
}

}  // namespace starpipe::plan
