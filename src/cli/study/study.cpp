// SPDX-License-Identifier: Apache-2.0
#include "cli/study/study.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "cli/input/yaml.hpp"
#include "runtime/config/config_keys.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::cli {
namespace {

/// Options that a study cannot give, and what to do instead. Those of study_outputs are further ones.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> taken_options = {
    {{"--set", "give the key itself"},
     {"--report", "each run has a report"},
     {"--output", "each run has a report"},
     {"--json", "each run has a report in JSON"},
     {"--format", "each run has a report in JSON"},
     {"--save-weights", "runs of a study keep no weights"},
     {"--save-precision", "runs of a study keep no weights"},
     {"--max-shard-size", "runs of a study keep no weights"},
     {"--resume", "a run of a study begins at its first step"}}};

/// Returns what to do instead of giving this option; empty if a study can give it.
std::string instead_of(std::string_view option) {
  for (const auto& [name, instead] : taken_options) {
    if (name == option) return std::string(instead);
  }
  for (const StudyOutput& output : study_outputs) {
    if (option.starts_with("--") && option.substr(2) == output.name)
      return fmt::format("give outputs: [{}]", output.name);
  }
  return {};
}

/// Returns a value as `--set` takes it: YAML on one line.
std::string flow_text(const YamlValue& value) {
  const YAML::Node& node = value.node();
  if (!node.IsDefined() || node.IsNull()) value.expected("a value");
  YAML::Emitter out;
  out.SetMapFormat(YAML::Flow);
  out.SetSeqFormat(YAML::Flow);
  out << node;
  std::string text = out.c_str();
  std::ranges::replace(text, '\n', ' ');  // the emitter breaks long lists
  return text;
}

Setting read_setting(const std::string& name, const YamlValue& value) {
  Setting setting{.name = name, .value = {}};
  setting.value = setting.is_option() ? value.word() : flow_text(value);
  if (name == ranks_setting) setting.value = std::to_string(value.whole<int>(1, 1'000'000));
  return setting;
}

/// True if a map is the value of one key, and not a section.
bool is_key(const std::string& name) { return runtime::find_key(runtime::config_keys(), name) != nullptr; }

/// Adds a setting; of a section, such as `schedule: {name: 1f1b, workers: 2}`, one for each of its keys.
void add_settings(const std::string& name, const YamlValue& value, Settings& settings) {
  const YAML::Node& node = value.node();
  const bool section = node.IsMap() && node.size() > 0 && !name.starts_with('-') && !is_key(name);
  if (!section) {
    if (std::ranges::find(settings, name, &Setting::name) != settings.end())
      value.fail(name + " is given twice");
    settings.push_back(read_setting(name, value));
    return;
  }
  for (const auto& pair : node) {
    const std::string key = pair.first.IsScalar() ? pair.first.Scalar() : "";
    if (key.empty()) value.expected("a map of keys and values");
    add_settings(fmt::format("{}.{}", name, key), value.member(key, pair.second), settings);
  }
}

void check_name(const Study& study, const std::string& name, const YAML::Node& key) {
  const std::string position = position_of(study.source, key);
  if (const std::string instead = instead_of(name); !instead.empty())
    throw InputError(fmt::format("{}: {}: not in a study: {}", position, name, instead));
  if (name == ranks_setting && !takes_devices(study.command)) {
    throw InputError(fmt::format("{}: ranks: {} runs in one process{}", position, study.command,
                                 study.command == "sim" ? "; --ranks-per-node has simulated ranks" : ""));
  }
}

using Names = std::set<std::string>;

/// Calls `read` with each name of a map of settings and its value. `read` returns the settings that it found.
/// Throws InputError if one of them is in `given`, the names so far.
void read_settings(const Study& study, const YamlValue& map, Names& given,
                   const std::function<Settings(const std::string&, const YamlValue&)>& read) {
  if (!map.node().IsMap()) map.expected("a map of settings and values");
  for (const auto& pair : map.node()) {
    const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : "";
    if (name.empty()) map.fail_at(pair.first, "expected the name of a setting, got " + described(pair.first));
    check_name(study, name, pair.first);
    const YamlValue value(pair.second, position_of(study.source, pair.second), name);
    for (const Setting& setting : read(name, value)) {
      if (!given.insert(setting.name).second) map.fail_at(pair.first, setting.name + " is given twice");
    }
  }
}

/// Reads a map of settings of `set` or `runs`.
Settings read_values(const Study& study, const YamlValue& map, Names& given) {
  Settings all;
  read_settings(study, map, given, [&](const std::string& name, const YamlValue& value) {
    Settings settings;
    add_settings(name, value, settings);
    all.insert(all.end(), settings.begin(), settings.end());
    return settings;
  });
  return all;
}

GridLine read_line(const Study& study, const std::string& name, const YamlValue& list) {
  GridLine line;
  for (const YamlValue& item : list.items_in(study.source, "a list of values")) {
    Settings settings;
    add_settings(name, {item.node(), position_of(study.source, item.node()), name}, settings);
    if (std::ranges::find(line, settings) != line.end()) {
      const bool scalar = item.node().IsScalar();
      list.fail((scalar ? settings.front().value : flow_text({item.node(), ""})) + " is there twice");
    }
    line.push_back(std::move(settings));
  }
  return line;
}

/// Returns the settings of all values of a line, each name once.
Settings settings_of(const GridLine& line) {
  Settings all;
  for (const Settings& settings : line) {
    for (const Setting& setting : settings) {
      if (std::ranges::find(all, setting.name, &Setting::name) == all.end()) all.push_back(setting);
    }
  }
  return all;
}

std::vector<std::string> read_outputs(const Study& study, const YamlValue& list) {
  std::vector<std::string> words;
  for (const StudyOutput& output : study_outputs) {
    if (output.is_of(study.command)) words.emplace_back(output.name);
  }
  std::vector<std::string> outputs;
  for (const YamlValue& item : list.items("a list such as [timeline]")) {
    outputs.push_back(item.one_of(words));
    if (std::ranges::count(outputs, outputs.back()) > 1) list.fail(outputs.back() + " is there twice");
  }
  return outputs;
}

}  // namespace

Study read_study(const std::filesystem::path& file) {
  Study study;
  study.source = file.string();
  const YamlValue top = YamlValue::in_file(load_yaml(file), study.source);
  constexpr std::array<std::string_view, 7> keys = {"command", "config",      "set",    "grid",
                                                    "runs",    "repetitions", "outputs"};
  std::map<std::string_view, YamlValue> values;
  read_map(top, keys, [&](std::size_t key, const YamlValue& value) {
    values.emplace(keys[key],
                   YamlValue(value.node(), position_of(study.source, value.node()), std::string(keys[key])));
  });
  const auto given = [&](std::string_view key) -> const YamlValue* {
    const auto found = values.find(key);
    return found == values.end() ? nullptr : &found->second;
  };
  for (const std::string_view key : {"command", "config"}) {
    if (given(key) == nullptr) throw InputError(fmt::format("{}: missing key {}", study.source, key));
  }
  study.command = given("command")->one_of({study_commands.begin(), study_commands.end()});
  study.config = given("config")->word();
  Names of_all;  // in `set` and `grid`
  if (const YamlValue* const map = given("set")) study.base = read_values(study, *map, of_all);
  if (const YamlValue* const map = given("grid")) {
    read_settings(study, *map, of_all, [&](const std::string& name, const YamlValue& value) {
      return settings_of(study.grid.emplace_back(read_line(study, name, value)));
    });
  }
  if (const YamlValue* const list = given("runs")) {
    for (const YamlValue& entry : list->items_in(study.source, "a list of maps of settings")) {
      Names names = of_all;
      study.runs.push_back(read_values(study, YamlValue::in_file(entry.node(), study.source), names));
    }
  } else {
    study.runs.emplace_back();
  }
  if (const YamlValue* const value = given("repetitions")) {
    if (study.command != "train")
      value->fail(study.command == "compare" ? "compare has --repetitions"
                                             : study.command + " gives the same each time");
    study.repetitions = value->whole<int>(1, 1000);
  }
  if (const YamlValue* const list = given("outputs")) study.outputs = read_outputs(study, *list);
  return study;
}

}  // namespace starpipe::cli
