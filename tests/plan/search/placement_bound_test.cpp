// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plan/search/lower_bound.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/random_schedules.hpp"

namespace starpipe::plan {
namespace {

Schedule chain_of(const char* name, int workers, int microbatches) {
  return make_schedule(
      name, {.workers = workers, .microbatches = microbatches, .graph = StageGraph::chain(workers)});
}

// 1F1B reaches it: the first worker has all its work, the last one between fill and drain.
TEST(PlacementBound, IsReached) {
  const Schedule schedule = chain_of("1f1b", 4, 8);
  EXPECT_DOUBLE_EQ(placement_bound(schedule, {}), simulate(schedule).makespan);
  EXPECT_DOUBLE_EQ(placement_bound(schedule, {}), (8 + 3) * 3);
}

TEST(PlacementBound, CountsTransfers) {
  const Schedule schedule = chain_of("gpipe", 3, 1);
  Costs costs;
  costs.links = Links(Link{.alpha = 0.5});
  EXPECT_DOUBLE_EQ(placement_bound(schedule, costs), 3 * 3 + 4 * 0.5);
  costs.prefetch = false;
  EXPECT_DOUBLE_EQ(placement_bound(schedule, costs), 3 * 3);
}

TEST(PlacementBound, IsNeverAboveTheMakespan) {
  testing::Random random(3);
  int tried = 0;
  for (int i = 0; i < 300; ++i) {
    const Schedule schedule(testing::random_spec(random, {.copies = true}));
    if (!check(schedule).ok()) continue;
    ++tried;
    Costs costs = testing::random_costs(random, schedule.stages());
    for (const bool prefetch : {true, false}) {
      costs.prefetch = prefetch;
      EXPECT_LE(placement_bound(schedule, costs), simulate(schedule, costs).makespan * (1 + 1e-9)) << i;
    }
  }
  EXPECT_GT(tried, 50);
}

}  // namespace
}  // namespace starpipe::plan
