// SPDX-License-Identifier: Apache-2.0
// The lower bound where stashes may be copied (docs/search.md, bound 9).
#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "plan/search/exact_copies.hpp"
#include "plan/search/lower_bound.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/search/search.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

/// Random numbers of a test. `pick(low, high)` includes both.
class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}
  int pick(int low, int high) { return low + static_cast<int>(random_() % index(high - low + 1)); }

 private:
  std::mt19937 random_;
};

/// Uneven stages on any workers, with any homes and little memory. A copy takes latency, or a time by the
/// bytes of its stash; in the second case two workers may share a link. `far`: transfers between workers take
/// so long that stashes wait long, and several are copied.
SearchProblem copying_problem(Dice& dice, bool far) {
  SearchProblem problem{.workers = far ? 2 : dice.pick(1, 2)};
  const Layout layout = dice.pick(0, 1) == 0 ? Layout::v : Layout::loop;
  problem.stage_workers = layout_workers(layout, problem.workers, dice.pick(1, 2));
  if (dice.pick(0, 3) == 0) std::ranges::reverse(problem.stage_workers);
  const std::size_t stages = problem.stage_workers.size();
  problem.microbatches = dice.pick(1, stages == 1 ? 5 : stages == 2 ? 4 : 2);
  problem.costs.links = Link{.alpha = far ? 2.0 * dice.pick(1, 5) : dice.pick(0, 2) * 0.5};
  problem.costs.durations.clear();
  problem.costs.sizes.clear();
  problem.stash.clear();
  const bool even = dice.pick(0, 1) == 0;
  for (std::size_t s = 0; s < (even ? 1 : stages); ++s) {
    problem.costs.durations.push_back({0.5 * dice.pick(0, 6), 0.5 * dice.pick(1, 6), 0.5 * dice.pick(0, 6)});
    problem.stash.push_back(dice.pick(1, 3));
    problem.costs.sizes.push_back({.stash = static_cast<std::uint64_t>(problem.stash.back())});
  }
  problem.may_recompute = dice.pick(0, 1) == 0;
  problem.remaking = dice.pick(0, 3) > 0 ? 1 : 0.5;
  if (dice.pick(0, 4) > 0) {
    problem.copies = Home::host;
    const double time = std::array{0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 20.0}[index(dice.pick(0, 7))];
    const bool latency = dice.pick(0, 1) == 0;
    problem.costs.host = latency
                             ? HomeLink{.link = {.alpha = time}}
                             : HomeLink{.link = {.beta = time / 2}, .workers = dice.pick(1, problem.workers)};
  }
  const double min = min_memory_limit(problem);
  problem.memory_limits.clear();
  for (int w = 0; w < (dice.pick(0, 2) == 0 ? problem.workers : 1); ++w)
    problem.memory_limits.push_back(min * (1 + 0.25 * dice.pick(0, 4)));
  return problem;
}

// No schedule of a small problem is below the bound, whatever its order and homes. With --gtest_repeat=30 it
// solves more than 2,000 problems: each repetition has other ones.
TEST(CopiesBound, IsBelowEverySchedule) {
  static Dice dice(21);
  int solved = 0, reached = 0, by_copies = 0, reached_by_copies = 0;
  for (int round = 0; round < rounds(100); ++round) {
    const SearchProblem problem = copying_problem(dice, round % 2 == 0);
    const double bound = lower_bound(problem);
    constexpr double more = 1.2;
    const std::optional<double> best = exact::CopyingBranchAndBound(problem, 20'000).run(bound * more);
    if (!best) continue;
    ++solved;
    EXPECT_GE(*best, bound * (1 - 1e-9)) << round;
    const bool is_reached = *best <= bound * (1 + 1e-9);
    if (is_reached) ++reached;
    SearchProblem unlimited = problem;
    unlimited.memory_limits = {1e9};
    if (!problem.copies || bound <= lower_bound(unlimited) * (1 + 1e-9)) continue;
    ++by_copies;
    if (is_reached) ++reached_by_copies;
  }
  RecordProperty("solved", solved);
  RecordProperty("reached", reached);
  RecordProperty("by_copies", by_copies);
  RecordProperty("reached_by_copies", reached_by_copies);
  EXPECT_GE(solved, rounds(100) / 2);
  EXPECT_GE(reached, rounds(100) / 4);
  EXPECT_GE(by_copies, rounds(100) / 15);
}

// The same against the search, for larger problems. Up to four workers share a link fairly.
TEST(CopiesBound, IsBelowWhatTheSearchFinds) {
  static Dice dice(22);
  int by_copies = 0;
  for (int round = 0; round < rounds(60); ++round) {
    SearchRequest r{.workers = dice.pick(1, 4), .microbatches = dice.pick(2, 8), .chunks = dice.pick(1, 2)};
    r.layout = dice.pick(0, 1) == 0 ? Layout::v : Layout::loop;
    r.costs.links = Link{.alpha = dice.pick(0, 2) * 0.3};
    r.costs.durations.clear();
    r.costs.sizes.clear();
    r.stash.clear();
    for (int s = 0; s < r.workers * *r.chunks; ++s) {
      r.costs.durations.push_back({0.5 * dice.pick(1, 4), 0.5 * dice.pick(1, 4), 0.5 * dice.pick(0, 4)});
      r.stash.push_back(dice.pick(2, 3));
      r.costs.sizes.push_back({.stash = static_cast<std::uint64_t>(r.stash.back())});
    }
    r.costs.host = HomeLink{.link = {.alpha = dice.pick(0, 1) * 0.25, .beta = 0.25 * dice.pick(0, 4)},
                            .workers = dice.pick(1, 4)};
    r.homes = {Home::worker, Home::host};
    if (dice.pick(0, 1) == 0) r.homes.push_back(Home::none);
    r.peers = dice.pick(0, 2) == 0;
    r.costs.peer = HomeLink{.link = {.alpha = 0.25 * dice.pick(0, 4)}};
    r.memory_limits = {3.0 * *r.chunks + 0.5 * dice.pick(0, 8)};  // room for a stash of each stage
    SearchProblem problem{.workers = r.workers,
                          .microbatches = r.microbatches,
                          .stage_workers = layout_workers(*r.layout, r.workers, *r.chunks),
                          .costs = r.costs,
                          .stash = r.stash,
                          .memory_limits = r.memory_limits,
                          .may_recompute = r.homes.size() > 2,
                          .copies = Home::host,
                          .peers = r.peers};
    const double bound = lower_bound(problem);
    const SearchResult result = search(r, {.budget = 1e6, .work = 0.002});
    EXPECT_NEAR(result.lower_bound, bound, 1e-9 * bound);
    EXPECT_LE(result.lower_bound, result.timeline.makespan) << round;
    problem.memory_limits = {1e9};
    if (bound > lower_bound(problem) * (1 + 1e-9)) ++by_copies;
  }
  EXPECT_GE(by_copies, rounds(60) / 30);
}

/// A chain with one stage per worker. The first workers copy every stash, in a steady rhythm: each holds two
/// stashes that leave and two that come back. `delays`: by stage, rounds from F to B.
Schedule conveyor(const std::vector<int>& delays, int copying, int microbatches) {
  return Schedule({.graph = StageGraph::chain(static_cast<int>(delays.size())),
                   .microbatches = microbatches,
                   .workers = static_cast<int>(delays.size()),
                   .split_backward = [](int, int) { return true; },
                   .placement =
                       [](const Job& job) {
                         return Placement{job.stage, job.stage};
                       },
                   .priority = [&](const Job& job) -> std::int64_t {
                     const std::int64_t round = job.microbatch;
                     const std::int64_t delay = delays[index(job.stage)];
                     if (job.pass == Pass::F) return 100 * round;
                     if (job.pass == Pass::O) return 100 * (round + 1) + 50;
                     if (job.pass == Pass::L) return 100 * (round + delay - 1) + 20;
                     return 100 * (round + delay) + (job.pass == Pass::B ? 60 : 61);
                   },
                   .home = [=](int stage, int) { return stage < copying ? Home::host : Home::worker; }});
}

// Schedules that fill the channels, or the link that two workers share, are not far above the bound.
TEST(CopiesBound, IsBelowSchedulesWithFullChannels) {
  for (const bool shared : {false, true}) {
    constexpr int microbatches = 600;
    const std::vector<int> delays = shared ? std::vector{48, 33, 17, 1} : std::vector{17, 1};
    const int workers = static_cast<int>(delays.size());
    SearchProblem problem{.workers = workers, .microbatches = microbatches};
    problem.stage_workers = layout_workers(Layout::loop, workers, 1);
    problem.costs.durations = {{0.25, 0.25, 0.25}};
    problem.costs.links = Link{.alpha = 15};
    problem.costs.sizes = {{.stash = 4}};
    problem.costs.host = HomeLink{.link = {.beta = shared ? 0.25 : 0.5}, .workers = shared ? 2 : 1};
    problem.copies = Home::host;
    problem.memory_limits.assign(index(workers), microbatches);
    std::fill_n(problem.memory_limits.begin(), shared ? 2 : 1, 4.0);
    const Schedule schedule = conveyor(delays, shared ? 2 : 1, microbatches);
    EXPECT_LE(stashes_in_order(schedule)[0], 4);
    EXPECT_LE(stashes_in_order(schedule)[shared ? 1 : 0], 4);
    const double makespan = simulate(schedule, problem.costs).makespan;
    EXPECT_GE(makespan, lower_bound(problem));
    EXPECT_LE(makespan, lower_bound(problem) * 1.2);
  }
}

// Other workers are as good as a host of one's own whose link is as fast as the fastest of both.
TEST(CopiesBound, TakesTheFastestLinkWithPeers) {
  Dice dice(24);
  for (int round = 0; round < rounds(100); ++round) {
    SearchProblem problem = copying_problem(dice, round % 2 == 0);
    const HomeLink peer{.link = {.alpha = 0.5 * dice.pick(0, 4)}};
    problem.costs.peer = peer;
    problem.peers = true;
    const double bound = lower_bound(problem);
    problem.peers = false;
    if (problem.copies) {
      EXPECT_LE(bound, lower_bound(problem) * (1 + 1e-9)) << round;
      problem.costs.host->link.alpha = std::min(problem.costs.host->link.alpha, peer.link.alpha);
      problem.costs.host->link.beta = 0;
      problem.costs.host->workers = 1;
    } else {
      problem.copies = Home::host;
      problem.costs.host = peer;
    }
    EXPECT_NEAR(lower_bound(problem), bound, 1e-9 * bound) << round;
  }
}

// Slower copies never lower the bound. It lies between the bound without a limit and the one without copies.
TEST(CopiesBound, GrowsWithTheTimeOfACopy) {
  Dice dice(23);
  int between = 0;
  for (int round = 0; round < rounds(300); ++round) {
    SearchProblem problem = copying_problem(dice, round % 2 == 0);
    problem.microbatches += dice.pick(0, 20);
    problem.memory_limits = {min_memory_limit(problem) * (2 + dice.pick(0, 2))};
    problem.copies.reset();
    const double without_copies = lower_bound(problem);
    SearchProblem unlimited = problem;
    unlimited.memory_limits = {1e9};
    const double without_limit = lower_bound(unlimited);
    problem.copies = Home::host;
    double before = without_limit;
    for (const double time : {0.0, 0.5, 1.0, 2.0, 5.0, 1000.0}) {
      problem.costs.host = HomeLink{.link = {.alpha = time}};
      const double bound = lower_bound(problem);
      EXPECT_GE(bound, before * (1 - 1e-9)) << round << " " << time;
      EXPECT_LE(bound, without_copies * (1 + 1e-9)) << round << " " << time;
      between += bound > without_limit * (1 + 1e-9) && bound < without_copies * (1 - 1e-9) ? 1 : 0;
      before = bound;
    }
  }
  EXPECT_GE(between, rounds(300) / 10);
}

// With copies that take no time, or little, only bound 2 knows the limit: no stash leaves between its B and
// its W. After the last B of the worker at the turn, a gradient passes 15 stages, and as many W can be left
// as there is room for stashes. Source: docs/search.md, the profile of Controllable Memory.
TEST(CopiesBound, OfFastCopiesIsTheOneWithoutALimitAndTheLastW) {
  SearchProblem problem{.workers = 16, .microbatches = 64, .stage_workers = layout_workers(Layout::v, 16, 2)};
  problem.costs.durations = {{6.48, 6.61, 4.88}};
  problem.costs.links = Link{.alpha = 0.67};
  const double without_limit = lower_bound(problem);
  problem.copies = Home::host;
  for (const double limit : {4.0, 8.0, 12.0, 18.0, 24.0}) {
    const double ideal = without_limit + std::max(0.0, 15 * (6.61 + 0.67) + 4.88 - limit * 4.88);
    problem.memory_limits = {limit};
    problem.costs.set_copy(0);
    EXPECT_NEAR(lower_bound(problem), ideal, 1e-9) << limit;
    problem.costs.set_copy((6.48 + 6.61 + 4.88) / 4);
    EXPECT_NEAR(lower_bound(problem), ideal, 1e-9) << limit;
    problem.costs.set_copy(6.48 + 6.61 + 4.88);
    EXPECT_GE(lower_bound(problem), ideal * (limit > 18 ? 1 : 1.005)) << limit;
  }
}

// Worker 0 of 4 has room for two stashes. A stash lives 9 with it, or 1 + 2 and 2 + 1 + 1 if it is copied: 7.
// Room for one is not in use during the first F and the last B.
TEST(CopiesBound, KnowsHowLongCopiedStashesLive) {
  SearchProblem problem{.workers = 4, .microbatches = 8, .stage_workers = {0, 1, 2, 3}};
  problem.memory_limits = {2, 100, 100, 100};
  problem.copies = Home::host;
  problem.costs.set_copy(2);
  EXPECT_DOUBLE_EQ(lower_bound(problem), (8 * 7 + 2) / 2.0);
  problem.costs.set_copy(100);
  EXPECT_DOUBLE_EQ(lower_bound(problem), (8 * 9 + 2) / 2.0);
}

// Worker 0 of 8 has room for four stashes, whose lives are 17, or 11 for the share y that is copied. Room
// for 3, 2 and 1 stash is not in use during the first three F and the last three B. The channels are busy for
// 96 (4 y), after an F and before a B and a W. With any copy, an O precedes the first
// L.
TEST(CopiesBound, KnowsTheChannels) {
  SearchProblem problem{.workers = 8, .microbatches = 96, .stage_workers = {0, 1, 2, 3, 4, 5, 6, 7}};
  problem.memory_limits = {4};
  problem.copies = Home::host;
  problem.costs.set_copy(4);
  const double y = ((96 * 17 + 6 * 2) / 4.0 - 3) / (96 * 6 / 4.0 + 96 * 4 + 4);
  EXPECT_NEAR(lower_bound(problem), 3 + y * (96 * 4 + 4), 1e-9);
}

// The same bytes over one link for two workers.
TEST(CopiesBound, KnowsSharedLinks) {
  SearchProblem problem{.workers = 8, .microbatches = 96, .stage_workers = {0, 1, 2, 3, 4, 5, 6, 7}};
  problem.memory_limits = {4};
  problem.copies = Home::host;
  problem.costs.sizes = {{.stash = 8}};
  problem.costs.host = HomeLink{.link = {.beta = 0.5}};
  const double alone = lower_bound(problem);
  problem.costs.host->workers = 2;
  const double shared = lower_bound(problem);
  // Worker 1's stashes live 15, or 11. Both need the time of the link, so copies save most on worker 0.
  EXPECT_GT(shared, alone * 1.05);
  problem.copies.reset();
  EXPECT_LT(shared, lower_bound(problem));
}

}  // namespace
}  // namespace starpipe::plan
