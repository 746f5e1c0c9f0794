// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/slice_sizes.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "model/seed.hpp"

namespace starpipe::model {
namespace {

std::vector<double> work_of(const std::vector<int>& tokens, SequenceWork work) {
  std::vector<double> of_slices;
  double first = 0;
  for (const int count : tokens) {
    const double end = first + count;
    of_slices.push_back(work.each * count + work.seen * (end * end - first * first) / 2);
    first = end;
  }
  return of_slices;
}

TEST(FitWork, FindsTheWorkThatSlicesHave) {
  const std::vector<int> tokens = {100, 30, 1, 400, 77};
  for (const SequenceWork work : {SequenceWork{3, 0.25}, SequenceWork{0, 2}, SequenceWork{1e-6, 1e-9}}) {
    const SequenceWork found = fit_work(tokens, work_of(tokens, work));
    EXPECT_NEAR(found.each, work.each, 1e-6 * (work.each + 400 * work.seen));
    EXPECT_NEAR(found.seen, work.seen, 1e-6 * work.seen);
  }
}

TEST(FitWork, TakesEqualTokensWhereLaterOnesCostNoMore) {
  const SequenceWork found = fit_work(std::vector<int>{10, 10, 10}, std::vector<double>{5, 4, 3});
  EXPECT_EQ(found.seen, 0);
  EXPECT_DOUBLE_EQ(found.each, 0.4);
  EXPECT_EQ(even_slices(30, 3, found), (std::vector<int>{10, 10, 10}));
}

TEST(FitWork, HasNoPartBelowZero) {
  // Slices of 2 tokens see 2, 6 and 10 tokens in all. Without the bound, the fit would be -1.375 and 1.625.
  const SequenceWork found = fit_work(std::vector<int>{2, 2, 2}, std::vector<double>{1, 6, 14});
  EXPECT_EQ(found.each, 0);
  EXPECT_DOUBLE_EQ(found.seen, (1 * 2 + 6 * 6 + 14 * 10) / 140.0);
}

TEST(EvenSlices, DifferByLessThanTheirLastTokens) {
  std::mt19937_64 bits(testing::seed());
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(testing::seed()));
    const int context = std::uniform_int_distribution(2, 5000)(bits);
    const int count = std::uniform_int_distribution(2, std::min(context, 20))(bits);
    const SequenceWork work = {std::uniform_real_distribution(0.1, 10.0)(bits),
                               std::uniform_real_distribution(0.0, 1.0)(bits)};
    const std::vector<int> tokens = even_slices(context, count, work);
    ASSERT_EQ(std::accumulate(tokens.begin(), tokens.end(), 0), context);
    ASSERT_GE(*std::ranges::min_element(tokens), 1);
    if (context < 50 * count) continue;  // short slices have at least a token, and may differ
    const std::vector<double> of_slices = work_of(tokens, work);
    const auto [least, most] = std::ranges::minmax(of_slices);
    // Each end is off by half a token at most, and the last token is the dearest.
    EXPECT_LE(most - least, 2 * (work.each + work.seen * context));
  }
}

TEST(EvenSlices, HaveATokenEach) {
  EXPECT_EQ(even_slices(3, 3, {1, 100}), (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(even_slices(5, 4, {0, 1}), (std::vector<int>{2, 1, 1, 1}));
}

}  // namespace
}  // namespace starpipe::model
