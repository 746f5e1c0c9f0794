// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"

namespace starpipe {

/// Returns the message of the error that `call` throws, or "" if it throws none. An error of another class
/// than `Error` ends the test.
template <class Error = InputError>
std::string message_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Expects that `call` throws an InputError whose message is one line and contains `part`.
void expect_input_error(const auto& call, const std::string& part) {
  const std::string message = message_of(call);
  EXPECT_NE(message, "") << "no InputError with " << part;
  EXPECT_THAT(message, ::testing::HasSubstr(part));
  EXPECT_THAT(message, ::testing::Not(::testing::HasSubstr("\n")));
}

}  // namespace starpipe
