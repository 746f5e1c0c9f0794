// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace starpipe {

/// Bad input of the user's: a file, key or value that cannot work. `what()` is one line that names
/// the culprit; the command line prints it and exits with 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace starpipe
