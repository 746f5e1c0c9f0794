// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/environment.hpp"

#include <cstdlib>

#include <fmt/format.h>

#include "starpipe/base/number_input.hpp"
#include "starpipe/base/require.hpp"

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

std::optional<int> environment_number(const char* name) {
  const std::string text = environment(name).value_or("");
  if (text.empty()) return std::nullopt;
  std::errc error{};
  const std::optional<int> number = parse_number<int>(text, error);
  require_input(number && error == std::errc() && *number >= 0, name,
                fmt::format("expected a whole number, at least 0, got '{}'", text));
  return number;
}

ScopedVariable::ScopedVariable(const char* name, const std::optional<std::string>& value)
    : name_(name), before_(environment(name)) {
  set(name_, value);
}

ScopedVariable::~ScopedVariable() { set(name_, before_); }

}  // namespace starpipe
