// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/config_keys.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/config/checkpoint_keys.hpp"
#include "runtime/config/evaluate_keys.hpp"
#include "runtime/config/model_keys.hpp"
#include "runtime/config/runtime_keys.hpp"
#include "runtime/config/schedule_keys.hpp"
#include "runtime/config/training_keys.hpp"
#include "runtime/config/config_rules.hpp"

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

}  // namespace

std::vector<ConfigKey> config_keys() {
  Keys all;
  keys::add_model_keys(all);
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

}  // namespace starpipe::runtime
