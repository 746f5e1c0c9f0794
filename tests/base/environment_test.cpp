// SPDX-License-Identifier: Apache-2.0
#include "base/environment.hpp"

#include <cstdlib>
#include <stdexcept>

#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "support/message_of.hpp"

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
    EXPECT_EQ(message_of([&] { environment_number(name); }),
              std::string(name) + ": expected a whole number from 0 to 2147483647, got '" + text + "'");
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

TEST(ReservedVariable, ChangesInPlace) {
  unsetenv(name);
  {
    ReservedVariable variable(name, "1", 4);
    EXPECT_FALSE(variable.was_set());
    const char* const place = std::getenv(name);
    {
      const ScopedValue value(variable, "1234");
      EXPECT_EQ(environment(name), "1234");
      EXPECT_EQ(std::getenv(name), place);
    }
    EXPECT_EQ(environment(name), "1");
    EXPECT_THROW(ScopedValue(variable, "12345"), std::length_error);
    EXPECT_EQ(environment(name), "1");
  }
  EXPECT_EQ(environment(name), std::nullopt);
}

TEST(ReservedVariable, KeepsTheValueOfTheUser) {
  const ScopedVariable by_user(name, "a long value");
  {
    ReservedVariable variable(name, "1", 0);
    EXPECT_TRUE(variable.was_set());
    EXPECT_EQ(environment(name), "a long value");
    { const ScopedValue value(variable, ""); }
    EXPECT_EQ(environment(name), "a long value");
    setenv(name, "other", 1);  // by another part of the program
    {
      const ScopedValue value(variable, "");
      EXPECT_EQ(environment(name), "");
    }
    EXPECT_EQ(environment(name), "other");
  }
  EXPECT_EQ(environment(name), "a long value");
}

}  // namespace
}  // namespace starpipe
