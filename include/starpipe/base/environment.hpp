// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace starpipe {

/// The value of an environment variable; nothing when it is not set. Like `getenv`, not to be called while
/// another thread changes the environment.
std::optional<std::string> environment(const char* name);

/// Sets a variable that is not set yet: a value of the user's stays.
void set_default_environment(const char* name, const char* value);

/// Sets an environment variable for its own lifetime and then restores it.
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
