// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/homes_at_peers.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plan/simulate/timed_copies.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

/// The memory of stashes on one worker in the order of n. A place is the time between two of the worker's own
/// jobs. Every stash that is there at some moment of a place counts for all of it.
class MemoryOfWorker {
 public:
  MemoryOfWorker(const Schedule& schedule, int worker) {
    for (const JobId id : schedule.order(worker)) turns_.push_back(schedule.turn(id));
    memory_.assign(turns_.size() + 1, 0);
  }

  /// Returns the peak of the memory between two turns.
  [[nodiscard]] double peak(std::uint32_t from, std::uint32_t to) const {
    const auto [first, last] = places(from, to);
    return *std::max_element(memory_.begin() + first, memory_.begin() + last);
  }

  void hold(std::uint32_t from, std::uint32_t to, double size) {
    const auto [first, last] = places(from, to);
    std::for_each(memory_.begin() + first, memory_.begin() + last, [size](double& here) { here += size; });
  }

 private:
  // Returns the first place, and the one after the last, of a stash that is there between two turns. Place i
  // lies between job i - 1 and job i.
  [[nodiscard]] std::pair<std::ptrdiff_t, std::ptrdiff_t> places(std::uint32_t from, std::uint32_t to) const {
    const auto first = std::ranges::upper_bound(turns_, from) - turns_.begin();
    const auto last = std::ranges::lower_bound(turns_, to) - turns_.begin() + 1;
    return {first, std::max(last, first + 1)};
  }

  std::vector<std::uint32_t> turns_;
  std::vector<double> memory_;
};

/// Chooses the workers to which copied stashes go.
class Guests {
 public:
  Guests(const Schedule& fitted, std::span<const double> limits, const Costs& costs, const FitWays& ways)
      : fitted_(fitted),
        limits_(limits),
        sizes_(ways.sizes),
        of_rank_(costs.workers_of_rank > 1 ? costs.workers_of_rank : fitted.workers()) {
    for (int w = 0; w < fitted.workers(); ++w) memory_.emplace_back(fitted, w);
    for (int b = 0; b < fitted.microbatches(); ++b) {
      for (int s = 0; s < fitted.stages(); ++s) hold_on_own(s, b);
    }
  }

  /// Returns the schedule in which every copied stash goes to another worker, if one has room.
  Schedule moved() {
    std::vector<Home> homes;
    for (int b = 0; b < fitted_.microbatches(); ++b) {
      for (int s = 0; s < fitted_.stages(); ++s) homes.push_back(fitted_.home(s, b));
    }
    for (const JobId id : fitted_.order()) {
      const auto [s, b, pass] = fitted_.job(id);
      if (pass == Pass::O) homes[index(b) * index(fitted_.stages()) + index(s)] = guest_of(s, b);
    }
    ScheduleSpec spec = fitted_.spec();
    spec.home = [&](int s, int b) { return homes[index(b) * index(fitted_.stages()) + index(s)]; };
    return Schedule(spec);
  }

 private:
  [[nodiscard]] double size(int stage) const { return sizes_[sizes_.size() == 1 ? 0 : index(stage)]; }
  [[nodiscard]] std::uint32_t turn(int stage, int microbatch, Pass pass) const {
    return fitted_.turn(*fitted_.find({stage, microbatch, pass}));
  }

  void hold_on_own(int s, int b) {
    MemoryOfWorker& own = memory_[index(fitted_.compute(fitted_.backward(s, b)))];
    const std::uint32_t made = fitted_.turn(fitted_.stash_maker(s, b));
    const std::uint32_t last =
        std::max(fitted_.turn(fitted_.backward(s, b)), fitted_.turn(fitted_.weight_gradient(s, b)));
    if (!is_copied(fitted_.home(s, b))) return own.hold(made, last, size(s));
    own.hold(made, turn(s, b, Pass::O), size(s));
    own.hold(turn(s, b, Pass::L), last, size(s));
  }

  Home guest_of(int s, int b) {
    const std::uint32_t out = turn(s, b, Pass::O);
    const std::uint32_t back = turn(s, b, Pass::L);
    const int own = fitted_.compute(fitted_.forward(s, b));
    const int first = own / of_rank_ * of_rank_;
    Home home = fitted_.home(s, b);
    double max_room = 0;
    for (int w = first; w < std::min(first + of_rank_, fitted_.workers()); ++w) {
      const double room = limits_[index(w)] - memory_[index(w)].peak(out, back);
      if (w == own || room < size(s) || room <= max_room) continue;
      home = Home::at(w);
      max_room = room;
    }
    if (home.peer()) memory_[index(*home.peer())].hold(out, back, size(s));
    return home;
  }

  const Schedule& fitted_;
  std::span<const double> limits_;
  std::span<const double> sizes_;
  int of_rank_;
  std::vector<MemoryOfWorker> memory_;
};

/// Returns the schedule with the homes of `moved`, where n follows from times: each O ends as early as its
/// channel allows, and each L begins as late. nullopt if a worker would then hold more than its limit.
std::optional<Schedule> with_early_copies(const Schedule& schedule, const Schedule& moved,
                                          std::span<const double> limits, const Costs& costs,
                                          const FitWays& ways) {
  const Schedule remade = schedule.with_homes(
      [&](int s, int b) { return moved.recomputes(s, b) ? Home::none : schedule.home(s, b); });
  const Timeline timeline = simulate(remade, costs);
  std::vector<TimedCopy> all;
  for (int w = 0; w < schedule.workers(); ++w) {
    std::vector<TimedCopy> copies;
    for (const JobId id : remade.order(w)) {
      const auto [s, b, pass] = remade.job(id);
      const Home home = moved.home(s, b);
      if (pass != Pass::F || !is_copied(home)) continue;
      const HomeLink& link = home.peer() ? *costs.peer : costs.home_link(home);
      copies.push_back({.stage = s,
                        .microbatch = b,
                        .made = timeline.spans[id].end,
                        .needed = timeline.spans[remade.backward(s, b)].start,
                        .copy = link.link.time(costs.size(s).stash)});
    }
    place_copies(copies);
    all.insert(all.end(), copies.begin(), copies.end());
  }
  Schedule made = with_timed_copies(remade, timeline, all, [&](int s, int b) { return moved.home(s, b); });
  const bool fits = std::ranges::equal(memory_in_order(made, ways.sizes), limits, std::less_equal<>{});
  return fits ? std::optional(std::move(made)) : std::nullopt;
}

}  // namespace

Schedule with_homes_at_peers(const Schedule& schedule, std::span<const double> limits, const Costs& costs,
                             const FitWays& ways) {
  if (!costs.peer) throw InputError("the time of a copy to another worker is not known");
  const bool keeps_others = is_copied(ways.copies);
  FitWays fitting = ways;
  if (!keeps_others) fitting.copies = Home::host;
  const Schedule timed = with_timed_copies(schedule, simulate(schedule, costs), {}, {});
  Schedule fitted = with_homes_to_fit(timed, limits, fitting);
  if (!fitted.copies()) return fitted;
  Schedule moved = Guests(fitted, limits, costs, ways).moved();
  if (!keeps_others) {
    moved = moved.with_homes([&](int s, int b) {
      const Home home = moved.home(s, b);
      if (home != Home::host) return home;
      if (ways.copies == Home::none) return Home::none;
      throw InputError(fmt::format("{}: no worker has room for the stash of {}", schedule.name(),
                                   to_string(Job{s, b, Pass::F})));
    });
  }
  std::optional<Schedule> other = with_early_copies(schedule, moved, limits, costs, ways);
  const bool is_shorter = other && simulated_makespan(*other, costs) < simulated_makespan(moved, costs);
  return is_shorter ? *std::move(other) : moved;
}

}  // namespace starpipe::plan
