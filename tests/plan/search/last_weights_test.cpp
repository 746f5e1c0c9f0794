// SPDX-License-Identifier: Apache-2.0
// Bounds 2, 3 and 6 where stashes may leave their worker (docs/search.md).
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "plan/search/exact_copies.hpp"
#include "plan/search/lower_bound.hpp"
#include "starpipe/plan/search/search_problem.hpp"

namespace starpipe::plan {
namespace {

/// Two workers with a stage each. F, B and W take 1, and a transfer 2.
SearchProblem two_workers(std::vector<double> limits) {
  SearchProblem problem{.workers = 2, .microbatches = 3, .stage_workers = {0, 1}};
  problem.costs.links = Link{.alpha = 2};
  problem.memory_limits = std::move(limits);
  return problem;
}

/// Returns true if some schedule is no longer than the bound. Fails if one is shorter.
bool is_reached(const SearchProblem& problem) {
  const double bound = lower_bound(problem);
  const auto best = exact::CopyingBranchAndBound(problem, 200'000).run(bound * (1 + 1e-6));
  EXPECT_TRUE(best) << "too many states";
  EXPECT_GE(best.value_or(bound), bound * (1 - 1e-9));
  return best && *best <= bound * (1 + 1e-9);
}

// The last worker starts at 3 and works for 9. After its last B, gradients take 4 to the end. Its memory has
// room for the stashes of K W, which it can run meanwhile.
TEST(LastWeights, NeedMemoryWhateverTheHomes) {
  for (const double K : {1.0, 2.0, 3.0}) {
    SearchProblem problem = two_workers({100, K});
    problem.may_recompute = true;
    EXPECT_DOUBLE_EQ(lower_bound(problem), 3 + 9 + 4 - K) << K;
    EXPECT_TRUE(is_reached(problem)) << K;
    problem.copies = Home::host;
    problem.costs.set_copy(0);
    EXPECT_DOUBLE_EQ(lower_bound(problem), 3 + 9 + 4 - K) << K;
    problem.may_recompute = false;
    EXPECT_DOUBLE_EQ(lower_bound(problem), 3 + 9 + 4 - K) << K;
    EXPECT_TRUE(is_reached(problem)) << K;
  }
}

// The first B of worker 0 starts at 7. One F keeps its stash until then; another that runs before is computed
// again, and takes as long. With an ideal home it does not.
TEST(Fill, CountsWhatIsComputedAgain) {
  SearchProblem problem = two_workers({1, 100});
  problem.may_recompute = true;
  EXPECT_DOUBLE_EQ(lower_bound(problem), 7 - 1 + 9);
  is_reached(problem);
  problem.remaking = 0;
  EXPECT_LT(lower_bound(problem), 7 - 1 + 9);
  is_reached(problem);
}

}  // namespace
}  // namespace starpipe::plan
