// SPDX-License-Identifier: Apache-2.0
#include "base/numbers.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "starpipe/base/index.hpp"

namespace starpipe {
namespace {

TEST(Numbers, BytesHaveAUnitThatKeepsThemShort) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(9'999), "9999 B");
  EXPECT_EQ(bytes_text(10'240), "10.0 KiB");
  EXPECT_EQ(bytes_text(std::uint64_t{3} << 29), "1.5 GiB");
}

TEST(Numbers, BytesThatDifferHaveTextsThatDiffer) {
  using Texts = std::pair<std::string, std::string>;
  EXPECT_EQ(bytes_texts(20'000, 10'240), Texts("19.5 KiB", "10.0 KiB"));
  EXPECT_EQ(bytes_texts(10'241, 10'240), Texts("10241 bytes", "10240 bytes"));
  EXPECT_EQ(bytes_texts(512, 512), Texts("512 B", "512 B"));
}

TEST(Numbers, AtMostFiveSignificantDigits) {
  EXPECT_EQ(number_text(33), "33");
  EXPECT_EQ(number_text(3.0 / 11), "0.27273");
  EXPECT_EQ(number_text(1204.46), "1204.5");
  EXPECT_EQ(number_text(123456.7), "123457");
}

TEST(Numbers, LossesOfAnySizeAreShort) {
  EXPECT_EQ(loss_text(2.302585), "2.3026");
  EXPECT_EQ(loss_text(0), "0.0000");
  EXPECT_EQ(loss_text(123456.7), "123456.7000");
  EXPECT_EQ(loss_text(1e34), "1.0000e+34");
  EXPECT_EQ(loss_text(-2.5e7), "-2.5000e+07");
  EXPECT_EQ(loss_text(1.25e-5), "1.2500e-05");
  EXPECT_EQ(loss_text(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(loss_text(-std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(Numbers, CeilDivRoundsUp) {
  EXPECT_EQ(ceil_div(0, 3), 0);
  EXPECT_EQ(ceil_div(6, 3), 2);
  EXPECT_EQ(ceil_div(7, 3), 3);
}

TEST(PercentText, HasOneDecimalAndNoNegativeZero) {
  EXPECT_EQ(percent_text(3.0 / 11), "27.3 %");
  EXPECT_EQ(percent_text(-1e-16), "0.0 %");
  EXPECT_EQ(percent_text(-0.01), "-1.0 %");
}

TEST(DifferenceText, HasASign) {
  EXPECT_EQ(difference_text(0.05), "+5.0 %");
  EXPECT_EQ(difference_text(-0.123), "-12.3 %");
  EXPECT_EQ(difference_text(std::numeric_limits<double>::infinity()), "> +10000 %");
  EXPECT_EQ(difference_text(std::numeric_limits<double>::quiet_NaN()), "+0.0 %") << "0 compared with 0";
}

TEST(CountedText, IsSingularForOne) {
  EXPECT_EQ(counted_text(1, "rank"), "1 rank");
  EXPECT_EQ(counted_text(0, "rank"), "0 ranks");
  EXPECT_EQ(counted_text(2, "repetition"), "2 repetitions");
}

}  // namespace
}  // namespace starpipe
