// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/homes_at_peers.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::ThrowsMessage;

Costs peers_only(double copy) {
  Costs costs{.durations = {{1, 1, 1}}};
  costs.peer = HomeLink{.link = {.alpha = copy}};
  return costs;
}

Schedule fitted_by_auto(const Schedule& schedule, int limit, const Costs& costs) {
  return as_requested(schedule, {.memory_limits = {limit}, .home_way = "auto"}, costs).schedule;
}

int guests(const Schedule& schedule) {
  int count = 0;
  for (int s = 0; s < schedule.stages(); ++s) {
    for (int b = 0; b < schedule.microbatches(); ++b) count += schedule.home(s, b).peer() ? 1 : 0;
  }
  return count;
}

// Under 1F1B, 8 workers hold 36 stashes, 4.5 each. With one more for copies under way, nobody waits.
TEST(HomesAtPeers, BalanceOneForwardOneBackward) {
  const Schedule kept = make_schedule("1f1b", {.workers = 8, .microbatches = 32});
  for (const int limit : {5, 6, 7}) {
    const Costs costs = peers_only(0.25);
    const Schedule made = fitted_by_auto(kept, limit, costs);
    EXPECT_EQ(check(made).problem, "");
    EXPECT_GT(guests(made), 0) << limit;
    EXPECT_FALSE(made.recomputes()) << limit;
    EXPECT_THAT(simulate(made, costs).peak_stashes, Each(Le(limit)));
    EXPECT_EQ(simulate(made, costs).makespan, simulate(kept, costs).makespan) << limit;
  }
}

// Four stashes each are too few for all of them: some are made again, but fewer than without other workers.
TEST(HomesAtPeers, MakeAgainWhatHasNoRoom) {
  const Schedule kept = make_schedule("1f1b", {.workers = 8, .microbatches = 32});
  const Costs costs = peers_only(0.25);
  const Schedule made = fitted_by_auto(kept, 4, costs);
  EXPECT_TRUE(made.recomputes());
  EXPECT_GT(guests(made), 0);
  EXPECT_LT(simulate(made, costs).makespan,
            simulate(fitted_by_auto(kept, 4, {.durations = costs.durations}), costs).makespan);
  EXPECT_THAT(
      [&] {
        with_homes_at_peers(kept, std::vector<double>(8, 4), costs, {.copies = Home::worker, .remade = 0});
      },
      ThrowsMessage<InputError>(HasSubstr("no worker has room for the stash of F")));
}

// Both links together are faster than either.
TEST(HomesAtPeers, ShareTheWorkWithTheHost) {
  const Schedule kept =
      make_schedule("interleaved-1f1b", {.workers = 8, .microbatches = 32, .graph = StageGraph::chain(16)});
  Costs host{.durations = {{0.5, 0.5, 0.5}}};
  host.host = HomeLink{.link = {.alpha = 1.38}};
  Costs both = host;
  both.peer = HomeLink{.link = {.alpha = 0.23}};
  const double of_host = simulate(fitted_by_auto(kept, 12, host), host).makespan;
  const Schedule made = fitted_by_auto(kept, 12, both);
  EXPECT_GT(guests(made), 0);
  EXPECT_LT(simulate(made, both).makespan, of_host);
}

// A rank's workers are neighbours, and no stash leaves its rank.
TEST(HomesAtPeers, StayWithinRanks) {
  Costs costs = peers_only(0.25);
  costs.workers_of_rank = 4;
  for (const char* name : {"1f1b", "gpipe"}) {
    const Schedule schedule = make_schedule(name, {.workers = 8, .microbatches = 16});
    for (const int limit : {5, 6}) {
      const Schedule made = with_homes_at_peers(schedule, std::vector<double>(8, limit), costs,
                                                {.copies = Home::none, .remade = 0});
      for (int s = 0; s < 8; ++s) {
        for (int b = 0; b < 16; ++b) {
          const int home = made.home(s, b).peer().value_or(s);
          EXPECT_EQ(home / 4, s / 4) << name;
        }
      }
    }
  }
}

// Random schedules: whatever the times, every worker keeps its limit, and jobs keep their order.
TEST(HomesAtPeers, KeepLimitsOfRandomSchedules) {
  testing::Random random(5);
  int moved = 0;
  for (int tried = 0; tried < rounds(400);) {
    const Schedule schedule(testing::random_spec(
        random, {.max_microbatches = 12, .one_worker_a_stash = true, .sound_priority = 1}));
    if (!check(schedule).ok() || schedule.workers() == 1) continue;
    ++tried;
    Costs costs{.durations = {{0.25 * testing::between(random, 0, 8), 0.25 * testing::between(random, 0, 8),
                               0.25 * testing::between(random, 0, 8)}}};
    costs.set_copy(0.25 * testing::between(random, 0, 4));
    const int most = std::ranges::max(stashes_in_order(schedule));
    const std::vector<double> limits(index(schedule.workers()), testing::between(random, 1, most));
    const FitWays ways{.copies = Home::of_code(testing::between(random, 0, 3)),
                       .remade = 0.5 * testing::between(random, 0, 1),
                       .spare = testing::between(random, 0, 1)};
    std::optional<Schedule> made;
    try {
      made = with_homes_at_peers(schedule, limits, costs, ways);
    } catch (const InputError&) {
      continue;
    }
    const std::vector<int> whole(limits.begin(), limits.end());
    ASSERT_EQ(check(made->with(Discipline::ordered, whole)).problem, "") << tried;
    const Timeline timeline = simulate(*made, costs);
    for (std::size_t w = 0; w < limits.size(); ++w) ASSERT_LE(timeline.peak_stashes[w], whole[w]) << tried;
    for (int w = 0; w < schedule.workers(); ++w) {
      std::vector<Job> before;
      std::vector<Job> after;
      for (const JobId id : schedule.order(w)) before.push_back(schedule.job(id));
      for (const JobId id : made->order(w)) {
        if (made->job(id).pass != Pass::R || schedule.find(made->job(id))) after.push_back(made->job(id));
      }
      ASSERT_EQ(before, after) << tried;
    }
    moved += guests(*made) > 0 ? 1 : 0;
  }
  EXPECT_GT(moved, rounds(60));
}

}  // namespace
}  // namespace starpipe::plan
