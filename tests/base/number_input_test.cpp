// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <gtest/gtest.h>

#include "base/numbers.hpp"

namespace starpipe {
namespace {

TEST(ParseNumber, TakesTheWholeTextInDecimal) {
  std::errc error{};
  EXPECT_EQ(parse_number<int>("-12", error), -12);
  EXPECT_EQ(parse_number<int>("010", error), 10);
  EXPECT_EQ(parse_number<double>("2.5e3", error), 2500);
  for (const char* text : {"", "x", "0x4", "4 ", " 4", "4MiB", "--4", "+4"}) {
    EXPECT_EQ(parse_number<int>(text, error), std::nullopt) << text;
    EXPECT_EQ(parse_number<double>(text, error), std::nullopt) << text;
  }
  EXPECT_EQ(parse_number<std::uint64_t>("-1", error), std::nullopt);
}

TEST(ParseNumber, SaysWhenTheTypeCannotHoldTheNumber) {
  std::errc error{};
  EXPECT_EQ(parse_number<int>("99999999999", error), 0);
  EXPECT_EQ(error, std::errc::result_out_of_range);
  EXPECT_EQ(parse_number<double>("1e999", error), 0);
  EXPECT_EQ(error, std::errc::result_out_of_range);
  EXPECT_EQ(parse_number<int>("7", error), 7);
  EXPECT_EQ(error, std::errc());
}

TEST(RangeProblem, NamesTheLimitThatTheNumberExceeds) {
  constexpr std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(range_problem("1", 1, 8), "");
  EXPECT_EQ(range_problem("8", 1, 8), "");
  EXPECT_EQ(range_problem("0", 1, 8), "must be at least 1, got 0");
  EXPECT_EQ(range_problem("9", 1, 8), "must be at most 8, got 9");
  EXPECT_EQ(range_problem("-3", 0, 8), "must be at least 0, got -3");
  EXPECT_EQ(range_problem("18446744073709551615", 0, largest), "");
  EXPECT_EQ(range_problem("18446744073709551616", 0, largest),
            "must be at most 18446744073709551615, got 18446744073709551616");
  EXPECT_EQ(range_problem("-99999999999999999999", 1, largest),
            "must be at least 1, got -99999999999999999999");
}

}  // namespace
}  // namespace starpipe
