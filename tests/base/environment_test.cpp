// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/environment.hpp"

#include <cstdlib>

#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"

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

TEST(Environment, NumbersAreWholeAndMalformedOnesAreNamed) {
  for (const auto& [text, number] : {std::pair("0", 0), std::pair("12", 12)}) {
    const ScopedVariable set(name, text);
    EXPECT_EQ(environment_number(name), number);
  }
  for (const auto& unset : {std::optional<std::string>(), std::optional<std::string>("")}) {
    const ScopedVariable set(name, unset);
    EXPECT_EQ(environment_number(name), std::nullopt);
  }
  for (const char* text : {"two", "2 cores", "2.5", "-1", " 2", "99999999999"}) {
    const ScopedVariable set(name, text);
    try {
      environment_number(name);
      ADD_FAILURE() << text;
    } catch (const InputError& error) {
      EXPECT_EQ(error.what(),
                std::string(name) + ": expected a whole number, at least 0, got '" + text + "'");
    }
  }
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
