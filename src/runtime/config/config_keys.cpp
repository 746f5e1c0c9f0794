// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/config_keys.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "runtime/config/key_parts.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Keys = std::vector<ConfigKey>;

/// The value as a configuration has it: a time with its unit.
json readable(const ValueType& type, const json& value) {
  if (type.kind != ValueType::Kind::time) return value;
  if (value.is_number()) return fmt::format("{}s", value.get<double>());
  json list = json::array();
  for (const json& item : value) list.push_back(readable(type, item));
  return list;
}

/// A key's value as a word of a condition.
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

/// Returns why the key's value does not go with other keys; empty if it does.
std::string misfit_of_value(const ConfigKey& key, const Config& config, const Keys& keys) {
  for (const auto& [value, condition] : key.refused_values) {
    if (!has_one_of(key.get(config), {value}) || !holds(condition, config, keys)) continue;
    return fmt::format("{} does not apply with {}{}", value, condition.key,
                       condition.values.empty() ? "" : " " + condition.values.front());
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
  const auto found = std::ranges::find_if(keys, [name](const ConfigKey& key) {
    return key.name == name || (!key.former_name.empty() && key.former_name == name);
  });
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
    return fmt::format("does not apply with {}{}", condition.key,
                       condition.values.empty() ? "" : " " + condition.values.front());
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
