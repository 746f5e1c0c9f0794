// SPDX-License-Identifier: Apache-2.0
#include "base/progress.hpp"

#include <gtest/gtest.h>

namespace starpipe {
namespace {

TEST(ProgressLine, ALogHasOnlyTheLinesThatAreKept) {
  testing::internal::CaptureStderr();
  const ProgressLine line;
  line.show("half");
  line.clear();
  line.keep("done");
  EXPECT_FALSE(line.on_terminal());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "done\n");
}

}  // namespace
}  // namespace starpipe
