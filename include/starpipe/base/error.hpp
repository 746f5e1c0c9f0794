// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace starpipe {

/// An error in the user's input: a file, key or value that cannot work. `what()` is one line that names it.
/// The command line prints this line and exits with 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A failure of a run that every rank has found at the same point and throws there. So no rank waits for
/// another, and each can end in good order.
class RunFailure : public std::runtime_error {
 public:
  /// `status`: the exit status of the run; 2 where input turns out to be bad after the run has begun.
  explicit RunFailure(const std::string& message, int status = 1)
      : std::runtime_error(message), status_(status) {}
  [[nodiscard]] int status() const { return status_; }

 private:
  int status_;
};

/// For the return codes of libraries in C: throws std::runtime_error unless `status` is 0, "StarPU: inserting
/// F(0,0) failed (error -19)" for library "StarPU", action "inserting" and object "F(0,0)". `reason`: the
/// library's own words for the code, in place of its number.
void require(int status, std::string_view library, std::string_view action, std::string_view object,
             std::string_view reason = {});

/// For the user's input: throws InputError unless `good`, "search: needs at least 1 worker" for subject
/// "search" and message "needs at least 1 worker".
void require_input(bool good, std::string_view subject, std::string_view message);

}  // namespace starpipe
