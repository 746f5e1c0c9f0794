// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/messages.hpp"

namespace starpipe {
namespace {

TEST(ProgressLine, ALogHasOnlyTheLinesThatAreKept) {
  ::testing::internal::CaptureStderr();
  const ProgressLine line;
  line.show("half");
  line.clear();
  line.keep("done");
  EXPECT_FALSE(line.on_terminal());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "done\n");
}

}  // namespace
}  // namespace starpipe
