// SPDX-License-Identifier: Apache-2.0
#include "cli/study/study.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "cli/input/yaml.hpp"
#include "starpipe/base/error.hpp"
#include "runtime/config/config_keys.hpp"

namespace starpipe::cli {
namespace {

constexpr std::array known_outputs = {StudyOutput{"train", "timeline", "--timeline", "timeline.svg"},
                                      StudyOutput{"train", "trace", "--trace", "trace.json"},
                                      StudyOutput{"train", "metrics", "--metrics", "metrics.jsonl"},
                                      StudyOutput{"simulate", "timeline", "--timeline", "timeline.svg"},
                                      StudyOutput{"simulate", "trace", "--trace", "trace.json"},
                                      StudyOutput{"compare", "timeline", "--timeline", "timeline.svg"},
                                      StudyOutput{"train", "html", "--html", "report.html"},
                                      StudyOutput{"simulate", "html", "--html", "report.html"},
                                      StudyOutput{"compare", "html", "--html", "report.html"}};

/// Options that a study cannot give, and what to do instead.
struct TakenOption {
  std::string_view name;
  std::string_view instead;
};
constexpr std::array taken_options = {TakenOption{"--set", "give the key itself"},
                                      TakenOption{"--report", "each run has a report"},
                                      TakenOption{"--output", "each run has a report"},
                                      TakenOption{"--json", "each run has a report in JSON"},
                                      TakenOption{"--format", "each run has a report in JSON"},
                                      TakenOption{"--html", "give outputs: [html]"},
                                      TakenOption{"--timeline", "give outputs: [timeline]"},
                                      TakenOption{"--trace", "give outputs: [trace]"},
                                      TakenOption{"--metrics", "give outputs: [metrics]"},
                                      TakenOption{"--save-weights", "runs of a study keep no weights"},
                                      TakenOption{"--resume", "a run of a study begins at its first step"}};

/// A value as `--set` takes it: YAML on one line.
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

/// Whether a map is the value of one key, and no section.
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
  for (const TakenOption& option : taken_options) {
    if (name != option.name) continue;
    throw InputError(fmt::format("{}: {}: not in a study: {}", position, name, option.instead));
  }
  if (name == ranks_setting && !takes_devices(study.command)) {
    throw InputError(fmt::format("{}: ranks: {} runs in one process{}", position, study.command,
                                 study.command == "sim" ? "; --ranks-per-node has simulated ranks" : ""));
  }
}

using Names = std::set<std::string>;

/// Calls `read` with each name of a map of settings and its value. It returns the settings that it found;
/// `given` are the names of those so far.
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
  if (!list.node().IsSequence() || list.node().size() == 0) list.expected("a list of values");
  GridLine line;
  for (const YAML::Node& item : list.node()) {
    Settings settings;
    add_settings(name, YamlValue(item, position_of(study.source, item), name), settings);
    if (std::ranges::find(line, settings) != line.end())
      list.fail((item.IsScalar() ? settings.front().value : flow_text({item, ""})) + " is there twice");
    line.push_back(std::move(settings));
  }
  return line;
}

/// Those of all values of a line, each name once.
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
  if (!list.node().IsSequence()) list.expected("a list such as [timeline]");
  std::vector<std::string> words;
  for (const StudyOutput& output : outputs_of(study.command)) words.emplace_back(output.name);
  std::vector<std::string> outputs;
  for (const YAML::Node& item : list.node()) {
    outputs.push_back(YamlValue(item, list.label()).one_of(words));
    if (std::ranges::count(outputs, outputs.back()) > 1) list.fail(outputs.back() + " is there twice");
  }
  return outputs;
}

}  // namespace

std::vector<StudyOutput> outputs_of(std::string_view command) {
  std::vector<StudyOutput> found;
  std::ranges::copy_if(known_outputs, std::back_inserter(found),
                       [&](const StudyOutput& output) { return output.command == command; });
  return found;
}

Study read_study(const std::filesystem::path& file) {
  const YAML::Node root = load_yaml(file);
  Study study;
  study.source = file.string();
  const YamlValue top = YamlValue::in_file(root, study.source);
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
    if (!list->node().IsSequence() || list->node().size() == 0) list->expected("a list of maps of settings");
    for (const YAML::Node& entry : list->node()) {
      Names names = of_all;
      study.runs.push_back(read_values(study, YamlValue::in_file(entry, study.source), names));
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
