// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/environment.hpp"

#include <cstdlib>

#include <gtest/gtest.h>

namespace starpipe {
namespace {

constexpr const char* name = "STARPIPE_TEST_VARIABLE";

TEST(Environment, TellsUnsetFromEmpty) {
  unsetenv(name);
  EXPECT_EQ(environment(name), std::nullopt);
  setenv(name, "", 1);
  EXPECT_EQ(environment(name), "");
  unsetenv(name);
}

TEST(Environment, DefaultsDoNotReplaceTheUsersValue) {
  unsetenv(name);
  set_default_environment(name, "ours");
  EXPECT_EQ(environment(name), "ours");
  set_default_environment(name, "again");
  EXPECT_EQ(environment(name), "ours");
  unsetenv(name);
}

TEST(ScopedVariable, RestoresTheValueBefore) {
  unsetenv(name);
  {
    const ScopedVariable outer(name, "outer");
    EXPECT_EQ(environment(name), "outer");
    {
      const ScopedVariable hidden(name, std::nullopt);
      EXPECT_EQ(environment(name), std::nullopt);
    }
    EXPECT_EQ(environment(name), "outer");
  }
  EXPECT_EQ(environment(name), std::nullopt);
}

}  // namespace
}  // namespace starpipe
