// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/building_block.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace starpipe::plan {
namespace {
TEST(X, Y) {}
}  // namespace
}  // namespace starpipe::plan
