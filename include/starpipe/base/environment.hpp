// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace starpipe {

/// The value of an environment variable; nothing when it is not set. Like `getenv`, not to be called while
/// another thread changes the environment.
std::optional<std::string> environment(const char* name);

/// The whole number, at least 0, in an environment variable; nothing when it is not set or empty. Throws
/// InputError, which names variable and value, for any other text.
std::optional<int> environment_number(const char* name);

/// Sets an environment variable for its own lifetime and then restores it. Both change the environment of the
/// whole process, while no other thread may read it.
class ScopedVariable {
 public:
  /// No `value`: the variable is not set during this lifetime. `name` must outlive this.
  ScopedVariable(const char* name, const std::optional<std::string>& value);
  ~ScopedVariable();
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace starpipe
