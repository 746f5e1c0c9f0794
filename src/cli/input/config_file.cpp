// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/numbers.hpp"
#include "cli/input/input_files.hpp"
#include "runtime/config/config_keys.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/plugin.hpp"

namespace starpipe::cli {
namespace {

using nlohmann::json;
using runtime::Config;
using runtime::ConfigKey;
using runtime::ValueType;

/// Reads a value of a key's type, or an item of a list.
json read_one(const YamlValue& value, const ValueType& type) {
  using Kind = ValueType::Kind;
  switch (type.kind) {
    case Kind::whole:
      return value.whole<std::uint64_t>(type.min, type.max);
    case Kind::number: {
      const double number = value.number(type.interval);
      if (const std::string problem = type.problem(number); !problem.empty()) value.fail(problem);
      return number;
    }
    case Kind::boolean:
      return value.boolean();
    case Kind::bytes:
      return value.bytes();
    case Kind::time:
      return value.time();
    case Kind::word:
      break;
  }
  return type.words.empty() ? value.word() : value.one_of(type.words);
}

/// Returns the values that a list key accepts, for messages.
std::string expected_list(const ValueType& type) {
  if (type.kind == ValueType::Kind::whole) return "a list of integers such as [0, 1]";
  if (type.kind == ValueType::Kind::time) return "a time such as 2ms, or one for each stage";
  if (type.kind == ValueType::Kind::bytes) return "a number of bytes such as 16MiB, or a list of them";
  if (type.words.empty()) return "a word, or a list of words";
  return fmt::format("one of {}, or a list of them", fmt::join(type.words, ", "));
}

json read_values_by_name(const YamlValue& value, const ValueType& type) {
  if (!value.node().IsMap()) value.expected("a map of names and values such as {waves: 2}");
  json map = json::object();
  for (const auto& pair : value.node()) {
    const std::string name = YamlValue(pair.first, value.label()).word();
    if (map.contains(name)) value.fail(name + " is given twice");
    map[name] = read_one(value.member(name, pair.second), type);
  }
  return map;
}

/// Reads a value in the form that ConfigKey::set takes.
json read(const YamlValue& value, const ValueType& type) {
  if (type.count == ValueType::Count::one) return read_one(value, type);
  if (type.count == ValueType::Count::map) return read_values_by_name(value, type);
  if (!value.node().IsSequence()) {
    if (type.count == ValueType::Count::list) value.expected(expected_list(type));
    return json::array({read_one(value, type)});
  }
  // An empty list of names is none of them. Where one value is for all, no value would be for none.
  const bool of_names = type.kind == ValueType::Kind::word && type.words.empty();
  if (value.node().size() == 0 && type.count != ValueType::Count::list && !of_names) {
    value.expected(expected_list(type));
  }
  json list = json::array();
  for (const YamlValue& item : value.items("a list")) list.push_back(read_one(item, type));
  return list;
}

// There are two limits of memory: `schedule.memory_limit` counts stashes, `runtime.memory_limit` bytes. If a
// value looks meant for the other key, the message names that key.
void refuse_other_limit(const ConfigKey& key, const YamlValue& value) {
  const YAML::Node& node = value.node();
  if (key.name == "schedule.memory_limit" && node.IsScalar() &&
      node.Scalar().find_first_of("bB") != std::string::npos) {
    value.expected("a number of stashes (runtime.memory_limit is in bytes)");
  }
  if (key.type.kind != ValueType::Kind::bytes) return;
  if (node.IsSequence()) {
    for (const YamlValue& item : value.items("a list")) refuse_other_limit(key, item);
  } else if (value.bytes() < key.type.min) {
    value.fail(fmt::format("must be at least {}, got {} bytes (schedule.memory_limit counts stashes)",
                           bytes_text(key.type.min), value.bytes()));
  }
}

/// Returns the section that holds a key or section: "" for "model", "training" for "training.optimizer".
std::string section_of(std::string_view name) {
  const auto dot = name.rfind('.');
  return std::string(name.substr(0, dot == std::string_view::npos ? 0 : dot));
}

using Keys = std::vector<ConfigKey>;

bool is_section(const Keys& keys, const std::string& name) {
  return std::ranges::any_of(keys, [&](const ConfigKey& key) { return key.name.starts_with(name + "."); });
}

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// Returns " (did you mean 'model.heads'?)" when some key is close: misspelt, or in another section.
std::string suggestion(const Keys& keys, std::string_view unknown) {
  std::vector<std::string> known;
  for (const ConfigKey& key : keys) {
    for (std::string section = section_of(key.name); !section.empty(); section = section_of(section))
      known.push_back(section);
  }
  for (const ConfigKey& key : keys) known.emplace_back(key.name);
  const std::string_view leaf = last_part(unknown);
  std::string best;
  std::size_t min = std::max<std::size_t>(2, leaf.size() / 3) + 1;
  for (const std::string& name : known) {
    std::size_t distance = edit_distance(unknown.substr(0, 200), name);
    if (last_part(name) == leaf) distance = std::min<std::size_t>(distance, 1);
    if (distance >= min) continue;
    min = distance;
    best = name;
  }
  return best.empty() ? "" : fmt::format(" (did you mean '{}'?)", best);
}

/// The keys that a user gave and their values, by name.
class Given {
 public:
  /// `source`: the name of the configuration's file.
  Given(const Keys& keys, std::string source) : keys_(keys), source_(std::move(source)) {}

  /// Adds the keys of the file.
  void add_file(const YAML::Node& root) { add(root, "", &source_, {}); }

  /// Adds the key of an argument of --set.
  void add_override(const std::string& argument) {
    const auto equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (equals == std::string::npos || name.empty()) {
      throw InputError(fmt::format("--set {}: expected KEY=VALUE, such as training.steps=10", argument));
    }
    const std::string label = "--set " + name;
    YAML::Node value;
    try {
      value = YAML::Load(argument.substr(equals + 1));
    } catch (const YAML::Exception& error) {
      throw InputError(fmt::format("--set {}: the value is not YAML: {}", argument, error.msg));
    }
    add_one(name, value, nullptr, label, label);
  }

  [[nodiscard]] const YamlValue* find(std::string_view name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  [[nodiscard]] bool is_overridden(const std::string& name) const { return overridden_.contains(name); }
  /// Returns the keys that --set gives, whole or in part.
  [[nodiscard]] std::set<std::string> overridden() const {
    std::set<std::string> all = overridden_;
    for (const auto& [name, members] : members_) all.insert(name);
    return all;
  }
  /// Applies each --set of one member of a map, such as schedule.options.extra. Throws InputError if the map
  /// does not apply to this configuration.
  void set_members(Config& config) const {
    for (const auto& [name, members] : members_) {
      const ConfigKey& key = *runtime::find_key(keys_, name);
      json map = key.get(config);
      for (const auto& [member, value] : members) map[member] = read_one(value, key.type);
      key.set(config, map);
      if (const std::string why = runtime::misfit(key, config, keys_); !why.empty())
        members.begin()->second.fail(why);
    }
  }
  [[noreturn]] void fail_missing(std::string_view name) const {
    throw InputError(fmt::format("{}: missing key '{}'", source_, name));
  }

 private:
  /// Adds the keys of a map. `file` is null for an override, whose keys all have one `label`.
  void add(const YAML::Node& map, const std::string& prefix, const std::string* file,
           const std::string& label) {
    for (const auto& pair : map) {
      const std::string position = file != nullptr ? position_of(*file, pair.first) : label;
      if (!pair.first.IsScalar()) {
        throw InputError(fmt::format("{}: a key must be a word, got {}", position, described(pair.first)));
      }
      const std::string name = prefix + pair.first.Scalar();
      add_one(name, pair.second, file, position,
              file != nullptr ? fmt::format("{}: {}", position, name) : fmt::format("--set {}", name));
    }
  }

  void add_one(const std::string& name, const YAML::Node& node, const std::string* file,
               const std::string& position, const std::string& label) {
    const bool override = file == nullptr;
    if (is_section(keys_, name)) {
      if (node.IsNull() && !override) return;
      if (!node.IsMap() || (override && node.size() == 0)) {
        YamlValue(node, label).expected(override ? "a map with at least one key" : "a map");
      }
      if (!override && !seen_sections_.insert(name).second) fail_twice(position, name);
      add(node, name + ".", file, position);
      return;
    }
    const ConfigKey* const key = runtime::find_key(keys_, name);
    if (key == nullptr && override && add_member(name, node, label)) return;
    if (key == nullptr) {
      throw InputError(fmt::format("{}: unknown key '{}'{}", position, name, suggestion(keys_, name)));
    }
    if (override) {
      values_.erase(key->name);
      members_.erase(key->name);
      replace(*key);
    }
    if (!values_.try_emplace(key->name, node, label).second) fail_twice(position, name);
  }

  /// Adds a member of a map, such as `schedule.options.waves`. Returns false if `name` is not of this form.
  bool add_member(const std::string& name, const YAML::Node& node, const std::string& label) {
    const ConfigKey* const map = runtime::find_key(keys_, section_of(name));
    const std::string member(last_part(name));
    if (map == nullptr || map->type.count != ValueType::Count::map || member.empty()) return false;
    members_[map->name].insert_or_assign(member, YamlValue(node, label));
    return true;
  }

  /// Drops the file's keys that do not apply with an override, where the override replaces them.
  void replace(const ConfigKey& key) {
    overridden_.insert(key.name);
    if (!key.replaces) return;
    for (const ConfigKey& other : keys_) {
      if (!overridden_.contains(other.name) && is_replaced(other, key)) values_.erase(other.name);
    }
  }

  /// True if setting `by` makes the file's value of `key` obsolete: the keys exclude each other, or `key` has
  /// another default when `by` is set.
  static bool is_replaced(const ConfigKey& key, const ConfigKey& by) {
    const auto names = [](const runtime::Condition& condition, const ConfigKey& named) {
      return condition.key == named.name || condition.key == section_of(named.name);
    };
    const auto excludes = [&](const ConfigKey& one, const ConfigKey& other) {
      return std::ranges::any_of(one.not_with, [&](const auto& condition) {
        return condition.values.empty() && names(condition, other);
      });
    };
    return excludes(key, by) || (key.replaces && excludes(by, key)) ||
           (section_of(key.name) == section_of(by.name) &&
            std::ranges::any_of(key.defaults, [&](const auto& other) { return names(other.condition, by); }));
  }

  [[noreturn]] static void fail_twice(const std::string& position, const std::string& name) {
    throw InputError(fmt::format("{}: key '{}' is given twice", position, name));
  }

  const Keys& keys_;
  std::string source_;
  std::map<std::string, YamlValue, std::less<>> values_;
  std::map<std::string, std::map<std::string, YamlValue>> members_;  // of maps, from --set
  std::set<std::string> seen_sections_;
  std::set<std::string> overridden_;
};

/// Ignores the file's plug-ins that do not have the schedule of --set.
void drop_plugins(const Given& given, runtime::ScheduleConfig& schedule) {
  if (!given.is_overridden("schedule.name") || given.is_overridden("schedule.plugin")) return;
  for (const std::string& file : plan::load_plugins_without(schedule.plugins, schedule.name)) {
    std::erase(schedule.plugins, file);
  }
}

/// Refuses a configuration that lacks keys, or whose keys do not go together.
void require_consistent(const Keys& keys, const Given& given, const Config& config) {
  for (const ConfigKey& key : keys) {
    const YamlValue* const value = given.find(key.name);
    if (value == nullptr) {
      if (runtime::is_missing(key, config, keys)) given.fail_missing(key.name);
      continue;
    }
    if (const std::string why = runtime::misfit(key, config, keys); !why.empty()) value->fail(why);
    if (key.type.length.empty() || !value->node().IsSequence()) continue;
    const json length = runtime::find_key(keys, key.type.length)->get(config);
    const int each = config.schedule.file ? 1 : config.workers_each();
    const auto size = static_cast<std::int64_t>(value->node().size());
    if (length.is_null() || size == length.get<std::int64_t>() * each) continue;
    value->fail(fmt::format("{} values for {} {}{}", size, key.type.length, length.dump(),
                            each > 1 ? fmt::format(", each of which becomes {} workers", each) : ""));
  }
}

/// Reads the links that a key names. Runs count in seconds.
LinksFile links_of_key(std::string_view key, const std::string& file) {
  LinksFile read = read_links(file);
  if (!read.in_seconds) throw InputError(fmt::format("{}: {} has times without units", key, file));
  for (const auto& [name, home] : {std::pair("host_link", read.host), {"disk_link", read.disk}}) {
    if (home && home->memory)
      throw InputError(fmt::format("{}: {}: {}: memory: runs do not keep to it", key, file, name));
  }
  return read;
}

/// Reads the links that delay the transfers and the copies of an emulated run.
void read_emulated_links(runtime::EmulationConfig& emulate) {
  constexpr std::string_view key = "runtime.emulate.links";
  LinksFile read = links_of_key(key, emulate.links_file);
  emulate.links = std::move(read.links);
  for (const auto& [name, home] : {std::pair("host_link", read.host), {"disk_link", read.disk}}) {
    if (home && home->workers > 1)
      throw InputError(fmt::format("{}: {}: {}: workers: emulated workers do not share such a link", key,
                                   emulate.links_file, name));
  }
  emulate.host = read.host;
  emulate.disk = read.disk;
}

}  // namespace

runtime::Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  const std::string source = file.string();
  const YAML::Node root = load_yaml(file);
  if (root.IsNull()) throw InputError(source + ": the configuration is empty");
  if (!root.IsMap()) {
    throw InputError(fmt::format("{}: expected a map with model, data, training and schedule, got {}", source,
                                 described(root)));
  }
  const Keys keys = runtime::config_keys();
  Given given(keys, source);
  given.add_file(root);
  for (const std::string& argument : overrides) given.add_override(argument);

  Config config;
  config.source = source;
  for (const ConfigKey& key : keys) {
    const YamlValue* const value = given.find(key.name);
    if (value == nullptr) continue;
    refuse_other_limit(key, *value);
    key.set(config, read(*value, key.type));
  }
  runtime::set_defaults(config, keys, [&](const ConfigKey& key) { return given.has(key.name); });
  require_consistent(keys, given, config);
  if (!config.schedule.plugins.empty()) drop_plugins(given, config.schedule);
  // The file's options belong to the file's schedule.
  if (given.is_overridden("schedule.name") && !given.is_overridden("schedule.options"))
    config.schedule.options.clear();
  given.set_members(config);
  if (given.has("schedule.profile")) config.profile = read_profile(config.schedule.profile_file);
  if (config.runtime.emulate && given.has("runtime.emulate.links"))
    read_emulated_links(*config.runtime.emulate);
  if (given.has("runtime.links"))
    config.runtime.links = links_of_key("runtime.links", config.runtime.links_file).links;
  return config;
}

std::set<std::string> overridden_keys(const std::vector<std::string>& overrides) {
  const Keys keys = runtime::config_keys();
  Given given(keys, "");
  for (const std::string& argument : overrides) given.add_override(argument);
  return given.overridden();
}

}  // namespace starpipe::cli
