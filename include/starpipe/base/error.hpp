// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace starpipe {

/// An error in the user's input: a file, key or value that cannot work. `what()` is one line that names it.
/// The command line prints this line and exits with 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace starpipe
