// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "support/message_of.hpp"

namespace starpipe {
namespace {

std::string message(int status, std::string_view reason = {}) {
  return message_of<std::runtime_error>([&] { require(status, "StarPU", "inserting", "F(0,1)", reason); });
}

TEST(Require, NamesLibraryActionObjectAndReason) {
  EXPECT_EQ(message(0), "");
  EXPECT_EQ(message(-19), "StarPU: inserting F(0,1) failed (error -19)");
  EXPECT_EQ(message(2, "out of memory"), "StarPU: inserting F(0,1) failed (out of memory)");
}

}  // namespace
}  // namespace starpipe
