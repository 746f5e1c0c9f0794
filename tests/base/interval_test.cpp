// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/interval.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "base/numbers.hpp"

namespace starpipe {
namespace {

TEST(Interval, EndsAreInsideUnlessTheyAreExcluded) {
  EXPECT_TRUE(not_negative.contains(0) && fraction.contains(0) && !positive.contains(0));
  EXPECT_FALSE(not_negative.contains(-0.5) || fraction.contains(1));
  EXPECT_TRUE((Interval{.min = 1, .max = 2}.contains(2)));
  EXPECT_FALSE((Interval{.min = 1, .max = 2}.contains(0)));
  EXPECT_TRUE((Interval{.min = 1, .max = 2, .zero = true}.contains(0)));
}

TEST(Interval, HoldsFiniteNumbersOnly) {
  EXPECT_FALSE(Interval().contains(NAN) || Interval().contains(INFINITY) || Interval().contains(-INFINITY));
  EXPECT_TRUE(Interval().contains(-1e300));
}

TEST(Interval, SaysItsEnds) {
  EXPECT_EQ(positive.text(), "greater than 0");
  EXPECT_EQ(fraction.text(), "at least 0 and less than 1");
  EXPECT_EQ((Interval{.max = 0.5}.text()), "at most 0.5");
  EXPECT_EQ((Interval{.min = 2, .zero = true}.text()), "0, or at least 2");
  EXPECT_EQ(Interval().text(), "");
}

}  // namespace
}  // namespace starpipe
