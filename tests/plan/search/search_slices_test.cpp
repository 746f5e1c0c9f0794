// SPDX-License-Identifier: Apache-2.0
// Search over schedules of slices: its results against all orders of small problems, and against named
// schedules.
#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/search/lower_bound.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/search/search.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"

namespace starpipe::plan {
namespace {

using ::testing::HasSubstr;

/// The smallest makespan of all orders: jobs are appended in every possible order, each as early as it can
/// run. Dependencies are those of Schedule::for_each_pred, which other tests have by hand.
class AllOrders {
 public:
  AllOrders(const SearchProblem& problem, const Schedule& jobs) : problem_(problem), jobs_(jobs) {
    for (const JobId id : jobs.order()) all_.push_back(id);
    end_.assign(jobs.id_count(), -1);
    free_.assign(index(jobs.workers()), 0);
    live_.assign(free_.size(), 0);
  }

  double run() {
    append(0, 0);
    return best_;
  }

 private:
  void append(std::size_t count, double makespan) {
    if (makespan >= best_) return;
    if (count == all_.size()) {
      best_ = makespan;
      return;
    }
    for (const JobId id : all_) {
      if (end_[id] >= 0) continue;
      const auto w = index(jobs_.compute(id));
      const Job job = jobs_.job(id);
      double start = free_[w];
      bool ready = true;
      jobs_.for_each_pred(id, [&](JobId before) {
        ready = ready && end_[before] >= 0;
        start = std::max(
            start, end_[before] +
                       (jobs_.compute(before) == jobs_.compute(id) ? 0 : problem_.costs.link(0, 1).alpha));
      });
      const double more = job.pass == Pass::F   ? 1.0 / problem_.slices
                          : job.pass == Pass::W ? -1.0 / problem_.slices
                                                : 0;
      if (!ready || live_[w] + std::max(more, 0.0) > problem_.memory_limits.front() + 1e-9) continue;
      const double was_free = free_[w];
      end_[id] = free_[w] = start + problem_.costs.duration(job).of(job.pass);
      live_[w] += more;
      append(count + 1, std::max(makespan, free_[w]));
      live_[w] -= more;
      free_[w] = was_free;
      end_[id] = -1;
    }
  }

  const SearchProblem& problem_;
  const Schedule& jobs_;
  std::vector<JobId> all_;
  std::vector<double> end_;
  std::vector<double> free_;
  std::vector<double> live_;
  double best_ = std::numeric_limits<double>::infinity();
};

TEST(SearchSlices, FindsTheBestOrderOfSmallProblems) {
  std::mt19937 random(3);
  for (int round = 0; round < 12; ++round) {
    const int slices = 2;
    SearchRequest request{.workers = 2, .microbatches = 1, .slices = slices, .chunks = 1};
    request.costs.durations.clear();
    request.costs.slices = slices;
    for (int entry = 0; entry < 2 * slices; ++entry) {
      const auto time = [&] { return 1 + static_cast<double>(random() % 4) / 2; };
      request.costs.durations.push_back({.F = time(), .B = time(), .W = time()});
    }
    request.costs.links = Link{.alpha = static_cast<double>(random() % 3) / 2};
    if (round % 3 == 1) request.memory_limits = {1};
    const SearchResult result = search(request, {.budget = 30, .work = 0.05});
    SearchProblem problem{.workers = 2,
                          .microbatches = slices,
                          .slices = slices,
                          .stage_workers = {0, 1},
                          .costs = request.costs,
                          .stash = {1.0 / slices},
                          .memory_limits = request.memory_limits};
    const double best = AllOrders(problem, result.schedule).run();
    EXPECT_NEAR(result.timeline.makespan, best, 1e-9) << "round " << round;
    EXPECT_LE(lower_bound(problem), best * (1 + 1e-12)) << "round " << round;
    EXPECT_LE(result.lower_bound, best * (1 + 1e-12)) << "round " << round;
    EXPECT_TRUE(check(result.schedule).ok());
    EXPECT_EQ(result.schedule.slices(), slices);
  }
}

// It starts from the named schedules, so it is never worse.
TEST(SearchSlices, IsNeverWorseThanANamedSchedule) {
  for (const int slices : {2, 4}) {
    const SearchRequest request{.workers = 4, .microbatches = 4, .slices = slices, .chunks = 1};
    const SearchResult result = search(request, {.budget = 30, .work = 0.2});
    EXPECT_EQ(result.schedule.microbatches(), 4 * slices);
    for (const char* name : {"1f1b", "gpipe", "zb-h1", "zb-2p"}) {
      const Schedule named = make_schedule(name, {.workers = 4, .microbatches = 4, .slices = slices});
      const double makespan = simulate(named, costs_of_slices({}, slices)).makespan;
      EXPECT_LE(result.timeline.makespan, makespan * (1 + 1e-9)) << name << ", " << slices << " slices";
    }
    EXPECT_GE(result.timeline.makespan, result.lower_bound);
    // The last worker waits for the first slice, and the first one for the gradient of the last slice.
    EXPECT_GE(result.lower_bound, 12 + 3.0 / slices - 1e-9);
    EXPECT_LT(result.timeline.makespan, 12 + 3 * 3.0 / slices);
  }
}

TEST(SearchSlices, KeepsTheLimit) {
  for (const double limit : {1.25, 2.0}) {
    const SearchRequest request{
        .workers = 4, .microbatches = 4, .slices = 4, .chunks = 1, .memory_limits = {limit}};
    const SearchResult result = search(request, {.budget = 30, .work = 0.2});
    for (const double peak : result.peak_memory) EXPECT_LE(peak, limit * (1 + 1e-9));
    for (const int stashes : result.timeline.peak_stashes) EXPECT_LE(stashes, limit * 4);
    EXPECT_TRUE(check(result.schedule).ok()) << check(result.schedule).problem;
  }
}

TEST(SearchSlices, RefusesWhatItDoesNotKnow) {
  const auto message = [](const SearchRequest& request) {
    return message_of([&] { search(request, {.budget = 1, .work = 0.01}); });
  };
  EXPECT_THAT(message({.workers = 2, .microbatches = 2, .slices = 0}), HasSubstr("at least 1 slice"));
  EXPECT_THAT(message({.workers = 2, .microbatches = 2, .slices = 2, .homes = {Home::worker, Home::none}}),
              HasSubstr("stashes of slices wait with their workers"));
  SearchRequest copies{.workers = 2, .microbatches = 2, .slices = 2, .homes = {Home::worker, Home::host}};
  copies.costs.set_copy(1);
  EXPECT_THAT(message(copies), HasSubstr("stashes of slices wait with their workers"));
  EXPECT_THAT(message({.workers = 2, .microbatches = 2, .slices = 2, .chunks = 1, .memory_limits = {0.5}}),
              HasSubstr("the smallest feasible limit is 1"));
  EXPECT_THAT(message({.workers = 2, .microbatches = 2, .slices = 2, .costs = {.slices = 3}}),
              HasSubstr("costs of 3 slices, the schedule has 2"));
  EXPECT_THAT(message({.workers = 2, .microbatches = 2, .costs = {.overlap = Overlap{}}}),
              HasSubstr("orders with pairs are not searched"));
}

}  // namespace
}  // namespace starpipe::plan
