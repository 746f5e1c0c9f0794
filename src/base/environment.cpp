// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/environment.hpp"

#include <cstdlib>

namespace starpipe {
namespace {

void set(const char* name, const std::optional<std::string>& value) {
  if (value) {
    setenv(name, value->c_str(), /*overwrite=*/1);
  } else {
    unsetenv(name);
  }
}

}  // namespace

std::optional<std::string> environment(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

void set_default_environment(const char* name, const char* value) { setenv(name, value, /*overwrite=*/0); }

ScopedVariable::ScopedVariable(const char* name, const std::optional<std::string>& value)
    : name_(name), before_(environment(name)) {
  set(name_, value);
}

ScopedVariable::~ScopedVariable() { set(name_, before_); }

}  // namespace starpipe
