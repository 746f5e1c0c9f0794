// SPDX-License-Identifier: Apache-2.0
#include "base/environment.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "starpipe/base/error.hpp"

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
  require_input(
      number && error == std::errc() && *number >= 0, name,
      fmt::format("expected a whole number from 0 to {}, got '{}'", std::numeric_limits<int>::max(), text));
  return number;
}

ScopedVariable::ScopedVariable(const char* name, const std::optional<std::string>& value)
    : name_(name), before_(environment(name)) {
  set(name_, value);
}

ScopedVariable::~ScopedVariable() { set(name_, before_); }

ReservedVariable::ReservedVariable(const char* name, std::string_view otherwise, std::size_t room)
    : name_(name), before_(environment(name)) {
  const std::string text = fmt::format("{}={}", name, before_ ? *before_ : otherwise);
  room_ = std::max(room, text.size() - std::strlen(name) - 1);
  text_.resize(std::strlen(name) + 1 + room_ + 1);
  std::ranges::copy(text, text_.begin());
  putenv(text_.data());
}

ReservedVariable::~ReservedVariable() { set(name_, before_); }

char* ReservedVariable::find(std::size_t wanted) const {
  char* const now = std::getenv(name_);
  const bool mine = now == text_.data() + std::strlen(name_) + 1;
  // Another part of the program may have set or unset the variable since then.
  const std::size_t room = now == nullptr ? 0 : mine ? room_ : std::strlen(now);
  if (wanted > room) throw std::length_error(fmt::format("{}: no room for {} characters", name_, wanted));
  return now;
}

ScopedValue::ScopedValue(const ReservedVariable& variable, std::string_view value)
    : name_(variable.name()), place_(variable.find(value.size())), before_(environment(name_)) {
  if (place_ != nullptr) write(value);
}

ScopedValue::~ScopedValue() {
  if (before_ && std::getenv(name_) == place_) write(*before_);
}

void ScopedValue::write(std::string_view value) {
  std::ranges::copy(value, place_);
  place_[value.size()] = '\0';
}

}  // namespace starpipe
