// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/config_key.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/numbers.hpp"
#include "starpipe/base/interval.hpp"

namespace starpipe::runtime {
namespace {

using nlohmann::json;

/// A default for people.
std::string text_of(const json& value, const ValueType& type) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() && value.size() == 1) return text_of(value.front(), type);
  if (!value.is_number_float()) return value.dump();
  // 300, not 300.0
  return fmt::format("{}{}", value.get<double>(), type.kind == ValueType::Kind::time ? "s" : "");
}

std::string texts_of(const std::vector<Condition>& conditions) {
  std::vector<std::string> texts;
  for (const Condition& condition : conditions) texts.push_back(condition.text());
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string text_of_one(const ValueType& type) {
  using Kind = ValueType::Kind;
  switch (type.kind) {
    case Kind::whole:
      if (type.max < std::numeric_limits<int>::max())
        return fmt::format("a whole number from {} to {}", type.min, type.max);
      return fmt::format("a whole number of at least {}", type.min);
    case Kind::number:
      return type.interval == Interval() ? "a number" : "a number, " + type.interval.text();
    case Kind::boolean:
      return "true or false";
    case Kind::bytes:
      return type.min == 0 ? "bytes, such as 16MiB"
                           : fmt::format("bytes, such as 16MiB; at least {}", bytes_text(type.min));
    case Kind::time:
      return "a time, such as 2ms";
    case Kind::word:
      break;
  }
  return type.words.empty() ? "text" : fmt::format("{}", fmt::join(type.words, ", "));
}

std::string problem_of_number(const ValueType& type, double value) {
  constexpr double largest{std::numeric_limits<float>::max()};
  constexpr double smallest{std::numeric_limits<float>::denorm_min()};
  if (!type.interval.contains(value)) {
    return fmt::format("must be {}, got {}", type.interval == Interval() ? "finite" : type.interval.text(),
                       value);
  }
  if (type.fp32 && std::abs(value) > largest)
    return fmt::format("must be at most {:.6g}, the largest number of fp32, got {}", largest, value);
  if (type.fp32 && value != 0 && std::abs(value) < smallest)
    return fmt::format("must be 0 or at least {:.6g}, the smallest number of fp32, got {}", smallest, value);
  return "";
}

}  // namespace

std::string ValueType::text() const {
  switch (count) {
    case Count::one:
      break;
    case Count::one_or_list:
      return text_of_one(*this) + "; or a list";
    case Count::list:
      return "a list, each " + text_of_one(*this);
    case Count::map:
      return "a map from names, each to " + text_of_one(*this);
  }
  return text_of_one(*this);
}

std::string ValueType::problem(const json& value) const {
  if (value.is_structured()) {
    for (const json& item : value) {
      if (std::string found = problem(item); !found.empty()) return found;
    }
    return "";
  }
  switch (kind) {
    case Kind::whole:
      return range_problem(value.dump(), min, max);
    case Kind::bytes:
      return range_problem(value.dump(), min, std::numeric_limits<std::uint64_t>::max());
    case Kind::number:
      return problem_of_number(*this, value.get<double>());
    case Kind::time:
      if (amounts.contains(value.get<double>())) return "";
      return fmt::format("expected a time of {}, got {}", amounts.text(), value.get<double>());
    case Kind::boolean:
      return "";
    case Kind::word:
      break;
  }
  if (words.empty() || std::ranges::find(words, value.get<std::string>()) != words.end()) return "";
  return fmt::format("'{}' is not one of {}", value.get<std::string>(), fmt::join(words, ", "));
}

std::string Condition::text() const {
  return values.empty() ? fmt::format("`{}`", key) : fmt::format("`{}: {}`", key, fmt::join(values, ", "));
}

std::string ConfigKey::default_for_people() const {
  std::vector<std::string> texts;
  if (required) {
    texts.push_back(required->key.empty() ? "required" : "required with " + required->text());
  } else if (!default_text.empty() || !default_value.is_null()) {
    texts.push_back(default_text.empty() ? text_of(default_value, type) : default_text);
  }
  for (const DefaultUnder& other : defaults) {
    texts.push_back(fmt::format("{} with {}", other.text.empty() ? text_of(other.value, type) : other.text,
                                other.condition.text()));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

std::string ConfigKey::full_meaning() const {
  std::string text = meaning;
  if (!only_with.empty()) text += fmt::format(" Only with {}.", texts_of(only_with));
  if (!not_with.empty()) text += fmt::format(" Not with {}.", texts_of(not_with));
  for (const RefusedValue& refused : refused_values) {
    text += fmt::format(" Not `{}` with {}.", refused.value, refused.condition.text());
  }
  if (!former_name.empty()) text += fmt::format(" `{}` is read as well.", former_name);
  return text;
}

}  // namespace starpipe::runtime
