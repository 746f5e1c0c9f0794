// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/config_keys.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/numbers.hpp"
#include "runtime/config/key_parts.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Keys = std::vector<ConfigKey>;

/// Returns a default for people.
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
  return text;
}

namespace {

/// Returns the value as a configuration has it: a time with its unit.
json readable(const ValueType& type, const json& value) {
  if (type.kind != ValueType::Kind::time) return value;
  if (value.is_number()) return fmt::format("{}s", value.get<double>());
  json list = json::array();
  for (const json& item : value) list.push_back(readable(type, item));
  return list;
}

/// Returns a key's value as a word of a condition.
std::string word_of(const json& value) {
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());  // 0, not 0.0
  return value.is_string() ? value.get<std::string>() : value.dump();
}

bool has_one_of(const json& value, const std::vector<std::string>& words) {
  if (value.is_array()) {
    return std::ranges::any_of(value, [&](const json& item) { return has_one_of(item, words); });
  }
  return std::ranges::find(words, word_of(value)) != words.end();
}

bool is_in_section(std::string_view name, std::string_view section) {
  return name.starts_with(section) && name.substr(section.size()).starts_with('.');
}

std::string exclusion(const Condition& condition) {
  return fmt::format("does not apply with {}{}", condition.key,
                     condition.values.empty() ? "" : " " + condition.values.front());
}

/// Returns why the key's value does not go with other keys; empty if it does.
std::string misfit_of_value(const ConfigKey& key, const Config& config, const Keys& keys) {
  for (const auto& [value, condition] : key.refused_values) {
    if (!has_one_of(key.get(config), {value}) || !holds(condition, config, keys)) continue;
    return value + " " + exclusion(condition);
  }
  return "";
}

}  // namespace

std::vector<ConfigKey> config_keys() {
  Keys all;
  keys::add_model_and_data_keys(all);
  keys::add_training_keys(all);
  keys::add_checkpoint_keys(all);
  keys::add_evaluate_keys(all);
  keys::add_schedule_keys(all);
  keys::add_runtime_keys(all);
  return all;
}

const ConfigKey* find_key(const Keys& keys, std::string_view name) {
  const auto found = std::ranges::find(keys, name, &ConfigKey::name);
  return found == keys.end() ? nullptr : &*found;
}

ordered_json config_json(const Config& config) {
  const Keys keys = config_keys();
  ordered_json result;
  for (const ConfigKey& key : keys) {
    if (!applies(key, config, keys)) continue;
    const json value = key.get(config);
    if (value.is_null()) continue;
    std::string path = "/" + key.name;
    std::ranges::replace(path, '.', '/');
    result[ordered_json::json_pointer(path)] = readable(key.type, value);
  }
  return result;
}

std::string describe_keys(const Keys& keys) {
  std::string text;
  for (const ConfigKey& key : keys) {
    const std::string by_default = key.default_for_people();
    text +=
        fmt::format("{}: {}{}\n    {}\n", key.name, key.type.text(),
                    by_default.empty() ? "" : fmt::format(" (default: {})", by_default), key.full_meaning());
  }
  return text;
}

ordered_json keys_json(const Keys& keys) {
  ordered_json list = ordered_json::array();
  for (const ConfigKey& key : keys) {
    list.push_back({{"name", key.name},
                    {"values", key.type.text()},
                    {"default", key.default_for_people()},
                    {"meaning", key.full_meaning()}});
  }
  return list;
}

bool holds(const Condition& condition, const Config& config, const Keys& keys) {
  if (condition.key.empty()) return true;
  return std::ranges::any_of(keys, [&](const ConfigKey& key) {
    if (key.name != condition.key && !is_in_section(key.name, condition.key)) return false;
    const json value = key.get(config);
    return !value.is_null() && (condition.values.empty() || has_one_of(value, condition.values));
  });
}

bool applies(const ConfigKey& key, const Config& config, const Keys& keys) {
  const auto holds_here = [&](const Condition& condition) { return holds(condition, config, keys); };
  return std::ranges::all_of(key.only_with, holds_here) && std::ranges::none_of(key.not_with, holds_here);
}

std::string misfit(const ConfigKey& key, const Config& config, const Keys& keys) {
  for (const Condition& condition : key.only_with) {
    if (holds(condition, config, keys)) continue;
    const ConfigKey* const other = find_key(keys, condition.key);
    const json value = other == nullptr ? json() : other->get(config);
    if (value.is_null()) return fmt::format("applies with {} only", condition.key);
    return fmt::format("does not apply to {} {}", condition.key, word_of(value));
  }
  for (const Condition& condition : key.not_with) {
    if (!holds(condition, config, keys)) continue;
    return exclusion(condition);
  }
  return misfit_of_value(key, config, keys);
}

void set_defaults(Config& config, const Keys& keys, const std::function<bool(const ConfigKey& key)>& given) {
  for (const ConfigKey& key : keys) {
    if (given(key)) continue;
    const auto holds_here = [&](const DefaultUnder& other) { return holds(other.condition, config, keys); };
    const auto found = std::ranges::find_if(key.defaults, holds_here);
    if (found != key.defaults.end()) key.set(config, found->value);
  }
}

bool is_missing(const ConfigKey& key, const Config& config, const Keys& keys) {
  const auto holds_here = [&](const Condition& condition) { return holds(condition, config, keys); };
  return key.required && holds_here(*key.required) && applies(key, config, keys) &&
         std::ranges::none_of(key.defaults, holds_here, &DefaultUnder::condition);
}

void check_values(const Config& config) {
  const Keys keys = config_keys();
  for (const ConfigKey& key : keys) {
    if (!applies(key, config, keys)) continue;
    const json value = key.get(config);
    if (value.is_null()) continue;
    std::string problem = key.type.problem(value);
    if (problem.empty()) problem = misfit_of_value(key, config, keys);
    if (!problem.empty()) throw InputError(fmt::format("{}: {}", key.name, problem));
  }
}

}  // namespace starpipe::runtime
