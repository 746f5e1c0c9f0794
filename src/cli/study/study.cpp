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

namespace starpipe::cli {
namespace {

constexpr std::array known_outputs = {StudyOutput{"train", "timeline", "--timeline", "timeline.svg"},
                                      StudyOutput{"train", "trace", "--trace", "trace.json"},
                                      StudyOutput{"train", "metrics", "--metrics", "metrics.jsonl"},
                                      StudyOutput{"train", "curves", "--curves", "curves.svg"},
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
                                      TakenOption{"--curves", "give outputs: [curves]"},
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

/// Calls `read` with each key and value of a map of settings. `given`: the names so far.
void read_settings(const Study& study, const YamlValue& map, std::set<std::string>& given,
                   const std::function<void(const std::string&, const YamlValue&)>& read) {
  if (!map.node().IsMap()) map.expected("a map of settings and values");
  for (const auto& pair : map.node()) {
    const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : "";
    if (name.empty()) map.fail_at(pair.first, "expected the name of a setting, got " + described(pair.first));
    check_name(study, name, pair.first);
    if (!given.insert(name).second) map.fail_at(pair.first, name + " is given twice");
    read(name, YamlValue(pair.second, position_of(study.source, pair.second), name));
  }
}

std::vector<std::string> read_values(const std::string& name, const YamlValue& list) {
  if (!list.node().IsSequence() || list.node().size() == 0) list.expected("a list of values");
  std::vector<std::string> values;
  for (const YAML::Node& item : list.node()) {
    values.push_back(read_setting(name, YamlValue(item, list.label())).value);
    if (std::ranges::count(values, values.back()) > 1) list.fail(values.back() + " is there twice");
  }
  return values;
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
  std::set<std::string> of_all;  // the names in `set` and `grid`
  if (const YamlValue* const map = given("set")) {
    read_settings(study, *map, of_all, [&](const std::string& name, const YamlValue& value) {
      study.base.push_back(read_setting(name, value));
    });
  }
  if (const YamlValue* const map = given("grid")) {
    read_settings(study, *map, of_all, [&](const std::string& name, const YamlValue& value) {
      study.grid.push_back({name, read_values(name, value)});
    });
  }
  if (const YamlValue* const list = given("runs")) {
    if (!list->node().IsSequence() || list->node().size() == 0) list->expected("a list of maps of settings");
    for (const YAML::Node& entry : list->node()) {
      std::set<std::string> names = of_all;
      Settings& settings = study.runs.emplace_back();
      read_settings(study, YamlValue::in_file(entry, study.source), names,
                    [&](const std::string& name, const YamlValue& value) {
                      settings.push_back(read_setting(name, value));
                    });
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
