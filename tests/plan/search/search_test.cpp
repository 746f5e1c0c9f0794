// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/search/search.hpp"

#include <algorithm>
#include <optional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/search/exact_search.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Options for a fixed amount of work, independent of the clock.
SearchOptions work(double seconds, std::uint64_t seed = 1) {
  return {.budget = 1e6, .work = seconds, .seed = seed};
}

SearchRequest request(int workers, int microbatches, int chunks, Layout layout, Durations durations,
                      double comm, double limit) {
  SearchRequest request{.workers = workers, .microbatches = microbatches, .chunks = chunks, .layout = layout};
  request.costs.durations = {durations};
  request.costs.links = Link{.alpha = comm};
  request.memory_limits = {limit};
  return request;
}

SearchProblem problem_of(const SearchRequest& request) {
  return {.workers = request.workers,
          .microbatches = request.microbatches,
          .stage_workers = layout_workers(*request.layout, request.workers, *request.chunks),
          .costs = request.costs,
          .stash = request.stash,
          .memory_limits = request.memory_limits,
          .may_recompute = request.homes.size() > 1};
}

int recomputed(const Schedule& schedule) {
  return static_cast<int>(
      std::ranges::count_if(schedule.order(), [&](JobId id) { return schedule.job(id).pass == Pass::R; }));
}

TEST(Layout, PlacesTheStages) {
  EXPECT_THAT(layout_workers(Layout::loop, 3, 2), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(layout_workers(Layout::v, 3, 3), ElementsAre(0, 1, 2, 2, 1, 0, 0, 1, 2));
  EXPECT_EQ(parse_layout("v"), Layout::v);
  EXPECT_THROW(parse_layout("w"), InputError);
}

/// A random problem with uneven stages and stashes, up to the given sizes. The memory limit has no effect.
/// `pick(low, high)` gives a random number.
template <typename Pick>
SearchRequest uneven_request(const Pick& pick, int max_workers, int max_chunks, int max_microbatches) {
  const int workers = pick(1, max_workers);
  const int chunks = pick(1, max_chunks);
  const Layout layout = pick(0, 1) == 0 ? Layout::v : Layout::loop;
  SearchRequest r = request(workers, pick(1, max_microbatches), chunks, layout, {}, 0, 1e9);
  const Link near{.alpha = pick(0, 2) * 0.3};
  const Link far{.alpha = pick(0, 4) * 0.3};
  r.costs.links = pick(0, 1) == 0 ? Links(near) : Links({{.workers = 2, .link = near}, {.link = far}});
  r.costs.durations.clear();
  r.stash.clear();
  for (int s = 0; s < workers * chunks; ++s) {
    r.costs.durations.push_back({0.5 * pick(0, 6), 0.5 * pick(1, 6), 0.5 * pick(0, 6)});
    r.stash.push_back(pick(1, 3));
  }
  return r;
}

// The promises of a result, on problems of all kinds.
TEST(Search, ResultsKeepTheLimitAndTheBound) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  for (int round = 0; round < rounds(60); ++round) {
    SearchRequest r = uneven_request(pick, 5, 3, 9);
    const double min = min_memory_limit(problem_of(r));
    r.memory_limits = {min * (1 + 0.25 * pick(0, 6))};
    if (round % 3 == 0) {  // a limit for each worker
      r.memory_limits.resize(index(r.workers));
      for (double& limit : r.memory_limits) limit = min * (1 + 0.25 * pick(0, 6));
    }
    const SearchResult result = search(r, work(0.01));

    EXPECT_EQ(check(result.schedule).problem, "");
    EXPECT_TRUE(result.complete);
    EXPECT_EQ(result.schedule.discipline(), Discipline::ordered);
    EXPECT_NEAR(result.lower_bound, lower_bound(problem_of(r)), 1e-9 * result.lower_bound);
    EXPECT_GE(result.timeline.makespan, result.lower_bound);
    for (std::size_t w = 0; w < result.peak_memory.size(); ++w) {
      const double limit = r.memory_limits[r.memory_limits.size() == 1 ? 0 : w];
      EXPECT_LE(result.peak_memory[w], limit * (1 + 1e-9)) << "worker " << w;
    }
  }
}

// The same with recomputation. A schedule is never worse than what the same work finds without it.
TEST(Search, RecomputesWhereMemoryIsShort) {
  std::mt19937 random(8);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  int better = 0;
  int only = 0;
  for (int round = 0; round < rounds(60); ++round) {
    SearchRequest kept = uneven_request(pick, 4, 2, 8);
    const double min = min_memory_limit(problem_of(kept));
    SearchRequest r = kept;
    r.homes = {Home::none, Home::worker};
    r.memory_limits = {min_memory_limit(problem_of(r)) * (1 + 0.25 * pick(0, 6))};
    kept.memory_limits = r.memory_limits;
    const SearchResult result = search(r, work(0.01));
    SCOPED_TRACE(round);

    ASSERT_EQ(check(result.schedule).problem, "");
    EXPECT_EQ(result.timeline.makespan, simulate(result.schedule, result.costs).makespan);
    EXPECT_NEAR(result.lower_bound, lower_bound(problem_of(r)), 1e-9 * result.lower_bound);
    EXPECT_GE(result.timeline.makespan, result.lower_bound);
    for (const double peak : result.peak_memory) EXPECT_LE(peak, r.memory_limits.front() * (1 + 1e-9));
    // The stashes that a run holds, by their sizes.
    Costs sized = result.costs;
    sized.sizes.clear();
    for (const double size : r.stash) sized.sizes.push_back({.stash = static_cast<std::uint64_t>(size)});
    for (const std::uint64_t peak : simulate(result.schedule, sized).peak_stash_bytes)
      EXPECT_LE(static_cast<double>(peak), r.memory_limits.front() * (1 + 1e-9));

    if (r.memory_limits.front() < min) {
      ++only;
      EXPECT_GT(recomputed(result.schedule), 0);
      EXPECT_THROW(search(kept, work(0.01)), InputError);
      continue;
    }
    const double without = search(kept, work(0.01)).timeline.makespan;
    EXPECT_LE(result.timeline.makespan, without * (1 + 1e-9));
    better += result.timeline.makespan < without * (1 - 1e-9) ? 1 : 0;
  }
  EXPECT_GE(better, rounds(5));
  EXPECT_GE(only, rounds(5));
}

// Little memory and many starts, so that random orders are among them.
TEST(Search, AlwaysEndsWhereOnlyRecomputationFits) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SearchRequest r = request(2, 5, 2, Layout::v, {1, 1, 1}, 0, 1);
    r.homes = {Home::none, Home::worker};
    const SearchResult result = search(r, work(0.05, seed));
    EXPECT_EQ(std::ranges::max(result.timeline.peak_stashes), 1);
    EXPECT_EQ(check(result.schedule).problem, "");
  }
}

// The same with copies. Slow ones are of no use, and then the result is that without.
TEST(Search, CopiesWhereMemoryIsShort) {
  std::mt19937 random(9);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  int copied = 0;
  int kept = 0;
  for (int round = 0; round < rounds(40); ++round) {
    SearchRequest near = uneven_request(pick, 4, 2, 8);
    near.memory_limits = {min_memory_limit(problem_of(near)) * (1 + 0.25 * pick(0, 3))};
    if (round % 2 == 0) near.homes = {Home::none, Home::worker};
    SearchRequest r = near;
    r.homes.push_back(Home::host);
    r.costs.host = HomeLink{.link = {.alpha = round % 4 == 3 ? 1000.0 : 0.25 * pick(1, 4)}};
    r.peers = pick(0, 1) == 0;
    r.costs.peer = r.costs.host;
    const SearchResult without = search(near, work(0.01));
    const SearchResult result = search(r, work(0.01));
    SCOPED_TRACE(round);

    EXPECT_EQ(check(result.schedule).problem, "");
    EXPECT_EQ(result.timeline.makespan, simulate(result.schedule, result.costs).makespan);
    EXPECT_LE(result.timeline.makespan, without.timeline.makespan * (1 + 1e-9));
    EXPECT_LE(result.lower_bound, result.timeline.makespan);
    for (const double peak : result.peak_memory) EXPECT_LE(peak, r.memory_limits.front() * (1 + 1e-8));
    const std::vector<double> in_order = memory_in_order(result.schedule, r.stash);
    for (std::size_t w = 0; w < in_order.size(); ++w) EXPECT_NEAR(result.peak_memory[w], in_order[w], 1e-9);
    copied += result.schedule.copies() ? 1 : 0;
    kept += result.schedule.copies() ? 0 : 1;
    if (round % 4 == 3) {
      EXPECT_FALSE(result.schedule.copies());
    }
  }
  EXPECT_GE(copied, rounds(4) - 1);  // a tenth of the rounds may have none
  EXPECT_GE(kept, rounds(4));
}

// Source: docs/search.md. Six units of memory of Controllable Memory's profile, and a link on which a stash
// takes a quarter of its F + B + W: without homes no order has less than 21.5 % of bubble.
TEST(Search, CopiesPayAtSixUnits) {
  constexpr double work_of_all = 64 * (12.96 + 13.22 + 9.76);
  SearchRequest r = request(16, 64, 2, Layout::v, {6.48, 6.61, 4.88}, 0.67, 12);
  r.homes = {Home::worker, Home::host};
  r.costs.host = HomeLink{.link = {.alpha = (6.48 + 6.61 + 4.88) / 4}};
  const SearchResult result = search(r, work(rounds(100) == 100 ? 3 : 1));
  EXPECT_LE(1 - work_of_all / result.timeline.makespan, 0.09);
  EXPECT_EQ(std::ranges::max(stashes_in_order(result.schedule)), 12);
}

TEST(Search, RefusesCopiesWithoutTheirTime) {
  SearchRequest r = request(2, 4, 1, Layout::v, {1, 1, 1}, 0, 1);
  r.homes = {Home::worker, Home::disk};
  EXPECT_THAT([&] { search(r); },
              ThrowsMessage<InputError>(HasSubstr("home disk: the time of a copy to the disk is not known")));
  r.homes = {Home::worker, Home::disk, Home::host};
  EXPECT_THAT([&] { search(r); }, ThrowsMessage<InputError>(HasSubstr("one of the homes host and disk")));
}

// 1F1B with stashes at partners keeps five stashes a worker, which no order without them does in its time.
TEST(Search, SendsStashesToOtherWorkers) {
  SearchRequest r = request(8, 32, 1, Layout::v, {1, 1, 1}, 0, 5);
  const double without = search(r, work(0.2)).timeline.makespan;
  r.peers = true;
  EXPECT_THAT([&] { search(r, work(0.2)); },
              ThrowsMessage<InputError>(HasSubstr("a copy to another worker is not known")));
  r.costs.peer = HomeLink{.link = {.alpha = 0.25}};
  const SearchResult result = search(r, work(0.2));
  EXPECT_EQ(check(result.schedule).problem, "");
  EXPECT_TRUE(result.schedule.has_peers());
  EXPECT_LE(std::ranges::max(result.peak_memory), 5);
  EXPECT_LE(result.timeline.makespan, 120);
  EXPECT_LT(result.timeline.makespan, 0.97 * without);
}

TEST(Search, RefusesHomesWithoutWorker) {
  SearchRequest r = request(2, 4, 1, Layout::v, {1, 1, 1}, 0, 1);
  r.homes = {Home::none};
  EXPECT_THAT([&] { search(r); },
              ThrowsMessage<InputError>(HasSubstr("homes of stashes must include worker")));
}

// Source: docs/search.md. The profile of Controllable Memory with 16 workers and 64 micro-batches, six units
// of memory: no order without recomputation has less than 21.5 % of bubble, and none was found below 27.
TEST(Search, RecomputationPaysAtSixUnits) {
  constexpr double work_of_all = 64 * (12.96 + 13.22 + 9.76);
  SearchRequest r = request(16, 64, 2, Layout::v, {6.48, 6.61, 4.88}, 0.67, 12);
  r.homes = {Home::none, Home::worker};
  const SearchResult result = search(r, work(rounds(100) == 100 ? 3 : 1));
  EXPECT_LE(1 - work_of_all / result.timeline.makespan, 0.24) << "recomputed work counts as bubble";
  for (const int peak : result.timeline.peak_stashes) EXPECT_LE(peak, 12);
}

// Over shared links the moves are judged without delays, but the result is not, and no registered schedule
// with this placement is better.
TEST(Search, OverSharedLinksTheResultHasAllDelays) {
  for (const Sharing sharing : {Sharing::in_order, Sharing::fair}) {
    SearchRequest r = request(4, 8, 1, Layout::v, {1, 1, 1}, 0, 1e9);
    r.costs.sizes = {{.activation = 2, .gradient = 2}};
    r.costs.links = Links({{.workers = 2, .link = {.alpha = 0.1, .beta = 0.1}},
                           {.link = {.alpha = 0.2, .beta = 0.6}, .sharing = sharing}});
    const SearchResult result = search(r, work(0.05));
    EXPECT_EQ(result.timeline.makespan, simulate(result.schedule, result.costs).makespan);
    EXPECT_GE(result.timeline.makespan, result.lower_bound);
    for (const char* name : {"1f1b", "zb-h1", "gpipe", "zb-h2"}) {
      const Schedule other = make_schedule(name, {.workers = 4, .microbatches = 8});
      EXPECT_LE(result.timeline.makespan, simulate(other, r.costs).makespan * (1 + 1e-9)) << name;
    }
  }
}

TEST(Search, WorkersHaveLimitsOfTheirOwn) {
  SearchRequest r = request(3, 6, 1, Layout::v, {1, 1, 1}, 0, 0);
  r.memory_limits = {3, 2, 1};
  const SearchResult result = search(r, work(0.05));
  EXPECT_THAT(result.schedule.memory_limits(), ElementsAre(3, 2, 1));
  for (std::size_t w = 0; w < 3; ++w) EXPECT_LE(result.timeline.peak_stashes[w], r.memory_limits[w]);
  const double same_everywhere =
      search(request(3, 6, 1, Layout::v, {1, 1, 1}, 0, 1), work(0.05)).timeline.makespan;
  EXPECT_LT(result.timeline.makespan, same_everywhere);
  r.memory_limits = {3, 2, 0.5};
  EXPECT_THAT([&] { search(r); }, ThrowsMessage<InputError>(HasSubstr("worker 2 needs at least 1")));
  r.memory_limits = {3, 2};
  EXPECT_THAT([&] { search(r); }, ThrowsMessage<InputError>(HasSubstr("2 memory limits for 3 workers")));
}

TEST(Search, PeakMemoryIsThatOfTheSimulatedRun) {
  const SearchResult result = search(request(4, 8, 2, Layout::v, {3, 2, 1}, 0.5, 5), work(0.05));
  for (std::size_t w = 0; w < 4; ++w) EXPECT_EQ(result.peak_memory[w], result.timeline.peak_stashes[w]);
  EXPECT_THAT(result.timeline.peak_stashes, ::testing::Each(::testing::Le(5)));
  EXPECT_THAT(result.schedule.memory_limits(), ::testing::Each(5));
}

TEST(Search, IsDeterministic) {
  const SearchRequest r = request(4, 8, 2, Layout::v, {12.96, 13.22, 9.76}, 0.67, 4);
  const SearchResult first = search(r, work(0.1));
  const SearchResult again = search(r, work(0.1));
  EXPECT_EQ(first.schedule, again.schedule);
  EXPECT_GT(first.timeline.makespan, first.lower_bound * 1.001);  // it did not stop at the bound
}

TEST(Search, EndsWithItsBudget) {
  const SearchResult result =
      search(request(4, 8, 2, Layout::v, {12.96, 13.22, 9.76}, 0.67, 4), {.budget = 0.02, .work = 1e6});
  EXPECT_FALSE(result.complete);
  EXPECT_TRUE(check(result.schedule).ok());
}

int builds = 0;
const bool registered_counting = register_schedule({"counting", "has no answer and counts the requests",
                                                    "this test", [](const ScheduleRequest&) -> Schedule {
                                                      ++builds;
                                                      throw InputError("counting: no answer");
                                                    }});

// For large problems, named schedules take long to build, and there are several placements to build them for.
TEST(Search, SpendsNoTimeOnNamesWhenItsBudgetIsSpent) {
  const SearchRequest r{.workers = 4, .microbatches = 8};
  builds = 0;
  EXPECT_TRUE(check(search(r, {.budget = 1e-9, .work = 1e6}).schedule).ok());
  EXPECT_EQ(builds, 0);
  search(r, work(0.01));
  EXPECT_GT(builds, 0);
}

// The search starts from every named schedule that fits.
TEST(Search, IsNeverWorseThanANamedSchedule) {
  constexpr int workers = 4;
  int compared = 0;
  for (const ScheduleEntry& entry : schedule_entries()) {
    for (const int chunks : {1, 2}) {
      ScheduleRequest named{
          .workers = workers, .microbatches = 6, .graph = StageGraph::chain(workers * chunks)};
      if (chunks > 1) named.stage_workers = layout_workers(Layout::loop, workers, chunks);
      std::optional<Schedule> schedule;
      try {
        schedule = entry.build(named);
      } catch (const InputError&) {
        continue;  // the schedule does not support this request
      }
      const bool loops = std::ranges::all_of(schedule->order(), [&](JobId id) {
        const int worker = schedule->job(id).stage % workers;
        return schedule->placement(id) == Placement{.weights = worker, .compute = worker};
      });
      if (!loops || !check(*schedule).ok()) continue;
      SearchRequest r = request(workers, 6, chunks, Layout::loop, {2, 3, 1}, 0.25, 1);
      const Timeline timeline = simulate(*schedule, r.costs);
      r.memory_limits = {static_cast<double>(std::ranges::max(timeline.peak_stashes))};
      EXPECT_LE(search(r, work(0.02)).timeline.makespan, timeline.makespan * (1 + 1e-9)) << entry.name;
      ++compared;
    }
  }
  EXPECT_GE(compared, 4);
}

TEST(Search, RefusesLimitsThatNoScheduleKeeps) {
  const auto search_within = [](double limit) {
    return [limit] { return search(request(4, 8, 2, Layout::v, {1, 1, 1}, 0, limit), work(0.01)); };
  };
  EXPECT_THAT(search_within(1),
              ThrowsMessage<InputError>(HasSubstr("memory limit of 1: the smallest feasible limit is 2")));
  EXPECT_THAT(search_within(2)().timeline.peak_stashes, ElementsAre(2, 2, 2, 2));

  SearchRequest uneven = request(2, 3, 2, Layout::loop, {1, 1, 1}, 0, 99);
  uneven.stash = {10, 20, 90, 70};
  EXPECT_THAT([&] { return search(uneven, work(0.01)); },
              ThrowsMessage<InputError>(HasSubstr("memory limit of 99: the smallest feasible limit is 100")));
  uneven.memory_limits = {100};
  EXPECT_THAT(search(uneven, work(0.01)).peak_memory, ElementsAre(100, 90));
}

TEST(Search, RefusesWrongInput) {
  const SearchRequest good = request(2, 3, 1, Layout::v, {1, 1, 1}, 0, 2);
  const auto refuses = [&](auto change, const char* culprit) {
    SearchRequest bad = good;
    change(bad);
    EXPECT_THAT([&] { return search(bad, work(0.01)); }, ThrowsMessage<InputError>(HasSubstr(culprit)));
  };
  refuses([](SearchRequest& r) { r.workers = 0; }, "worker");
  refuses([](SearchRequest& r) { r.microbatches = 0; }, "micro-batch");
  refuses([](SearchRequest& r) { r.chunks = 0; }, "chunk");
  refuses([](SearchRequest& r) { r.memory_limits = {-1}; }, "-1");
  refuses([](SearchRequest& r) { r.stash = {1, 2, 3}; }, "one per stage, not 3");
  refuses([](SearchRequest& r) { r.costs.durations.resize(3); }, "one per stage, not 3");
  refuses([](SearchRequest& r) { r.costs.durations[0].W = -2; }, "W=-2");
  refuses([](SearchRequest& r) { r.costs.prefetch = false; }, "prefetch");
}

// Without chunks, costs are for a share of the model, 1/W of it. Two chunks halve the costs of a stage.
TEST(Search, ChoosesChunksAndCountsSharesOfTheModel) {
  SearchRequest r{.workers = 4, .microbatches = 4};
  r.costs.durations = {{12, 12, 12}};
  r.memory_limits = {3};
  const SearchResult result = search(r, work(0.5));
  EXPECT_EQ(result.schedule.stages(), 4 * result.chunks);
  EXPECT_EQ(result.costs.duration(0).F, 12.0 / result.chunks);
  for (const double peak : result.peak_memory) EXPECT_LE(peak, 3 + 1e-9);
  r.chunks = 1;
  EXPECT_LT(result.timeline.makespan, search(r, work(0.1)).timeline.makespan);
}

TEST(Search, SplitsUnevenShares) {
  SearchRequest r{.workers = 2, .microbatches = 3};
  r.costs.durations = {{4, 4, 4}, {8, 8, 8}};
  r.stash = {1, 2};
  r.memory_limits = {100};
  const SearchResult result = search(r, work(0.1));
  double forward = 0;
  for (int s = 0; s < result.schedule.stages(); ++s) forward += result.costs.duration(s).F;
  EXPECT_DOUBLE_EQ(forward, 12);
}

struct Small {
  int workers, microbatches, chunks;
  Layout layout;
  Durations durations;
  double comm;
  double limit;
};

class SmallProblems : public ::testing::TestWithParam<Small> {};

TEST_P(SmallProblems, AreSolvedToTheOptimum) {
  const Small& p = GetParam();
  const SearchRequest r =
      request(p.workers, p.microbatches, p.chunks, p.layout, p.durations, p.comm, p.limit);
  const SearchResult result = search(r, work(2));
  const SearchProblem problem = problem_of(r);
  EXPECT_DOUBLE_EQ(exact::BranchAndBound(problem).run(result.timeline.makespan), result.timeline.makespan);
}

constexpr Durations unit{1, 1, 1};
constexpr Durations uneven{3, 2, 1.5};
constexpr Durations profiled{12.96, 13.22, 9.76};

INSTANTIATE_TEST_SUITE_P(
    All, SmallProblems,
    ::testing::Values(
        Small{2, 6, 1, Layout::loop, unit, 0.5, 2}, Small{2, 6, 1, Layout::loop, uneven, 0.7, 2},
        Small{3, 4, 1, Layout::loop, uneven, 0.7, 3}, Small{3, 6, 1, Layout::loop, profiled, 0.67, 2},
        Small{4, 6, 1, Layout::loop, unit, 0, 4}, Small{4, 6, 1, Layout::loop, profiled, 0.67, 3},
        Small{4, 4, 1, Layout::loop, uneven, 0.7, 2}, Small{2, 4, 2, Layout::loop, uneven, 0.7, 4},
        Small{2, 6, 2, Layout::v, profiled, 0.67, 3}, Small{2, 6, 2, Layout::v, unit, 0.5, 4},
        Small{3, 4, 2, Layout::v, uneven, 0.7, 4}, Small{4, 2, 2, Layout::v, profiled, 0.67, 3},
        Small{4, 3, 2, Layout::v, uneven, 0.7, 3}));

// The exact method finds better schedules than a search that stops early. Otherwise the tests above could not
// fail.
TEST(ExactSearch, FindsBetterSchedules) {
  const SearchProblem problem = problem_of(request(2, 4, 2, Layout::loop, uneven, 0.7, 4));
  EXPECT_LT(exact::BranchAndBound(problem).run(100), 60);
}

// Uneven stages and stashes: formulas for equal stages do not hold here.
TEST(LowerBound, IsBelowTheOptimum) {
  std::mt19937 random(11);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  int reached = 0;
  for (int round = 0; round < 60; ++round) {
    SearchRequest r = uneven_request(pick, 3, 2, 3);
    r.memory_limits = {min_memory_limit(problem_of(r)) * (1 + pick(0, 4) * (pick(0, 3) > 0 ? 0.25 : 3))};
    if (round % 3 == 0) {  // a limit for each worker
      r.memory_limits.resize(index(r.workers), r.memory_limits.front());
      for (double& limit : r.memory_limits) limit += 0.25 * pick(0, 4);
    }
    const SearchProblem problem = problem_of(r);
    const double optimum = exact::BranchAndBound(problem).run(search(r, work(0.05)).timeline.makespan);
    EXPECT_LE(lower_bound(problem), optimum * (1 + 1e-9)) << round;
    if (lower_bound(problem) >= optimum * (1 - 1e-9)) ++reached;
  }
  EXPECT_GE(reached, 20);
}

// The same where F may be computed again, or the stash comes back from an ideal home. The exact method runs
// R at any time.
TEST(LowerBound, IsBelowTheOptimumWithRecomputation) {
  std::mt19937 random(12);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  int reached = 0;
  int recomputed = 0;
  for (int round = 0; round < rounds(2000); ++round) {
    SearchRequest r = uneven_request(pick, 2, 2, 3);
    if (r.workers * *r.chunks * r.microbatches > 8) continue;
    SearchProblem problem = problem_of(r);
    const double kept = min_memory_limit(problem);
    problem.may_recompute = true;
    problem.remaking = pick(0, 1);
    problem.memory_limits = {min_memory_limit(problem) * (1 + 0.25 * pick(0, 4))};
    const double optimum = exact::BranchAndBound(problem).run(1e9);
    EXPECT_LE(lower_bound(problem), optimum * (1 + 1e-9)) << round;
    if (lower_bound(problem) >= optimum * (1 - 1e-9)) ++reached;
    if (problem.memory_limits.front() < kept) ++recomputed;
  }
  EXPECT_GT(reached, rounds(300));
  EXPECT_GT(recomputed, rounds(200));
}

// The sum of what must be idle and what must be computed again, where every second stash fits. One stage on
// one worker: F, B and W take 1, and two of four micro-batches are computed again.
TEST(LowerBound, LetsRecomputationTakeItsTime) {
  SearchProblem problem{.workers = 2, .microbatches = 4, .stage_workers = {0, 1}};
  problem.memory_limits = {1};
  const double kept = lower_bound(problem);
  problem.may_recompute = true;
  const double bound = lower_bound(problem);
  EXPECT_LT(bound, kept);
  EXPECT_GT(bound, 12);
  EXPECT_LE(bound, exact::BranchAndBound(problem).run(1e9) * (1 + 1e-9));
}

TEST(LowerBound, OfOneWorkerIsItsWork) {
  EXPECT_DOUBLE_EQ(lower_bound({.workers = 1, .microbatches = 5}), 15);
}

TEST(LowerBound, CountsFillAndTransfers) {
  // The last of 3 workers starts after two stages and two transfers; its W fill the time in which B drains.
  SearchProblem problem{.workers = 3, .microbatches = 4, .stage_workers = {0, 1, 2}};
  problem.costs.links = Link{.alpha = 0.5};
  EXPECT_DOUBLE_EQ(lower_bound(problem), 2 * 1.5 + 4 * 3);
}

// Worker 0 of 4 has room for one micro-batch, so micro-batches follow each other. Each takes a round trip of
// 4 F and 4 B, and a W.
TEST(LowerBound, KnowsMemory) {
  SearchProblem problem{.workers = 4, .microbatches = 5, .stage_workers = {0, 1, 2, 3}};
  problem.memory_limits = {1};
  EXPECT_DOUBLE_EQ(lower_bound(problem), 5 * 9);
}

// Two micro-batches leave most of the memory empty, from the first F to the last B.
TEST(LowerBound, IsThatOfNoLimitWhereMemoryIsPlenty) {
  SearchProblem problem{.workers = 4, .microbatches = 2, .stage_workers = {0, 1, 2, 3}};
  const double bound = lower_bound(problem);
  EXPECT_LE(bound, exact::BranchAndBound(problem).run(100));
  for (const double limit : {2.0, 10.0, 1000.0, 1e15}) {
    problem.memory_limits = {limit};
    EXPECT_DOUBLE_EQ(lower_bound(problem), bound) << limit;
  }
}

// Worker 1 of 2 has both stages at the turn of a V and room for one micro-batch. W of the upper stage and B
// of the lower stage delay each other. Memory is free during the first of the two F, and during an F between
// the two W or, without this F, during the second W. The stashes of a micro-batch alone take an area of 12; 3
// more are needed for all micro-batches except two. Filling and emptying leave an area of 1 each. Worker 0
// adds 2 at the start and the end.
TEST(LowerBound, KnowsTheTurnOfAV) {
  SearchProblem problem{.workers = 2, .microbatches = 4, .stage_workers = {0, 1, 1, 0}};
  problem.memory_limits = {2};
  const double bound = lower_bound(problem);
  EXPECT_DOUBLE_EQ(bound, 2 + (4 * 12 + 2 * 3 + 2) / 2.0);
  EXPECT_LE(bound, exact::BranchAndBound(problem).run(100));
}

// At a turn, one B may end the last stashes of both stages, so emptying takes less time than elsewhere.
TEST(LowerBound, CountsTheEndOfATurnOnce) {
  SearchProblem problem{.workers = 3, .microbatches = 2, .stage_workers = {0, 1, 2, 2, 1, 0}};
  problem.costs.durations = {{9, 10, 5}};
  problem.memory_limits = {5};
  EXPECT_LE(lower_bound(problem), exact::BranchAndBound(problem).run(1e9));
}

// The bound against all optima, for any placement and so little memory that the area decides.
TEST(LowerBound, IsBelowTheOptimumWithLittleMemory) {
  std::mt19937 random(5);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  for (int round = 0; round < rounds(100); ++round) {
    const bool even = pick(0, 1) == 0;
    SearchRequest r = uneven_request(pick, 2, 2, 5);
    if (even) r.costs.durations.resize(1), r.stash.resize(1);
    SearchProblem problem = problem_of(r);
    if (pick(0, 3) == 0) std::ranges::reverse(problem.stage_workers);
    problem.memory_limits = {min_memory_limit(problem) * (1 + 0.25 * pick(0, 2))};
    EXPECT_LE(lower_bound(problem), exact::BranchAndBound(problem).run(1e9) * (1 + 1e-9)) << round;
  }
}

// Source: docs/search.md. With 6 units of memory, 16 workers and 64 micro-batches, more than a fifth of the
// time is idle: with one to four chunks, in a V or a loop.
TEST(LowerBound, LeavesMoreThanAFifthIdleAtSixUnits) {
  constexpr double work = 64 * (12.96 + 13.22 + 9.76);
  for (const int chunks : {1, 2, 3, 4}) {
    for (const Layout layout : {Layout::v, Layout::loop}) {
      const Durations stage{12.96 / chunks, 13.22 / chunks, 9.76 / chunks};
      const SearchRequest r = request(16, 64, chunks, layout, stage, 0.67, 6 * chunks);
      EXPECT_LT(work / lower_bound(problem_of(r)), 0.786) << chunks << to_string(layout);
    }
  }
}

// Source: docs/search.md. 9 units of memory on 16 workers in a V, 64 micro-batches.
TEST(LowerBound, IsNearlyReachedBySixteenWorkers) {
  const SearchRequest r = request(16, 64, 2, Layout::v, {6.48, 6.61, 4.88}, 0.67, 18);
  const SearchResult result = search(r, work(1));
  EXPECT_LE(result.timeline.makespan, result.lower_bound * 1.02);
}

}  // namespace
}  // namespace starpipe::plan
