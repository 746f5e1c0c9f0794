// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

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

}  // namespace starpipe
