// SPDX-License-Identifier: Apache-2.0
#include "cli/input/profile_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/input/yaml.hpp"
#include "plan/formats/schedule_values.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {
namespace {

struct FileUnit {
  plan::UnitCosts costs;
  int count = 1;
  std::vector<std::string> devices = {};
};

using Value = const YamlValue&;

void read_spread(Value value, FileUnit& /*unit*/) {
  if (!value.node().IsMap()) value.expected("a map of F, B and W");
}

// Reads the times on one kind of device, an index of device_kinds.
template <std::size_t kind>
void read_device(Value value, FileUnit& unit);

plan::Durations& times_of(FileUnit& unit) { return unit.costs.time; }
using Key = MapKey<FileUnit>;
template <std::size_t pass>
constexpr Key unit_time = time_key<pass, FileUnit, times_of>;
constexpr std::array keys = {
    Key{runtime::device_kinds[0], read_device<0>},
    Key{runtime::device_kinds[1], read_device<1>},
    Key{"name", [](Value v, FileUnit& u) { u.costs.name = v.word(); }},
    Key{"count", [](Value v, FileUnit& u) { u.count = v.whole<int>(1, plan::size_limits::units); }},
    unit_time<0>,
    unit_time<1>,
    unit_time<2>,
    Key{"weights", [](Value v, FileUnit& u) { u.costs.sizes.weights = v.bytes(); }},
    Key{"master", [](Value v, FileUnit& u) { u.costs.sizes.master = v.bytes(); }},
    Key{"activation", [](Value v, FileUnit& u) { u.costs.sizes.activation = v.bytes(); }},
    Key{"gradient", [](Value v, FileUnit& u) { u.costs.sizes.gradient = v.bytes(); }},
    Key{"stash", [](Value v, FileUnit& u) { u.costs.sizes.stash = v.bytes(); }},
    Key{"gradient_stash", [](Value v, FileUnit& u) { u.costs.sizes.gradient_stash = v.bytes(); }},
    Key{"spread", read_spread},
};

bool is_time(std::string_view name) {
  return std::ranges::find(plan::pass_times, name, &plan::PassTime::name) != plan::pass_times.end();
}

template <std::size_t kind>
void read_device(Value value, FileUnit& unit) {
  static constexpr std::array of_device = {unit_time<0>, unit_time<1>, unit_time<2>,
                                           Key{"spread", read_spread}};
  FileUnit times;
  const auto seen = read_map<FileUnit>(value, of_device, times);
  if (std::ranges::none_of(seen, is_time)) value.fail("a time is missing (F, B or W)");
  unit.devices.emplace_back(runtime::device_kinds[kind]);
  unit.costs.others.push_back(times.costs.time);
}

FileUnit read_unit(const YAML::Node& map, const std::string& file, std::size_t number) {
  const YamlValue value(map, position_of(file, map), fmt::format("layers[{}]", number));
  FileUnit unit;
  const std::set<std::string> seen = read_map<FileUnit>(value, keys, unit);
  const bool has_times = std::ranges::any_of(seen, is_time);
  if (!has_times && unit.devices.empty()) value.fail("a time is missing (F, B or W)");
  if (has_times && !unit.devices.empty()) {
    value.fail(fmt::format("give F, B and W either directly or under {}", fmt::join(unit.devices, " and ")));
  }
  // Devices go in the order of device_kinds; the times of the first go to `time`.
  if (unit.devices.size() == 2 && unit.devices.front() == runtime::device_kinds.back()) {
    std::ranges::reverse(unit.devices);
    std::ranges::reverse(unit.costs.others);
  }
  if (!unit.devices.empty()) {
    unit.costs.time = unit.costs.others.front();
    unit.costs.others.erase(unit.costs.others.begin());
  }
  if (!seen.contains("gradient")) unit.costs.sizes.gradient = unit.costs.sizes.activation;
  return unit;
}

using SharedKey = MapKey<plan::SharedUnits>;
constexpr std::array shared_keys = {
    SharedKey{"name", [](Value v, plan::SharedUnits& set) { set.name = v.word(); }},
    SharedKey{"units",
              [](Value v, plan::SharedUnits& set) {
                if (!v.node().IsSequence()) v.expected("a list of units such as [0, 5]");
                for (const YAML::Node& item : v.node())
                  set.units.push_back(YamlValue(item, v.label()).whole<int>(0));
              }},
    SharedKey{"weights", [](Value v, plan::SharedUnits& set) { set.weights = v.bytes(); }},
    SharedKey{"master", [](Value v, plan::SharedUnits& set) { set.master = v.bytes(); }},
};

plan::SharedUnits read_shared_set(Value value, std::size_t units) {
  plan::SharedUnits set;
  const std::set<std::string> seen = read_map<plan::SharedUnits>(value, shared_keys, set);
  for (const char* key : {"units", "weights"}) {
    if (!seen.contains(key)) value.fail(fmt::format("{} is missing", key));
  }
  if (set.units.empty()) value.fail("units: the list is empty");
  if (std::ranges::adjacent_find(set.units, std::greater_equal<>()) != set.units.end())
    value.fail(fmt::format("units: [{}] does not ascend", fmt::join(set.units, ", ")));
  if (std::cmp_greater_equal(set.units.back(), units))
    value.fail(fmt::format("units: there is no unit {}; the units are 0 to {}", set.units.back(), units - 1));
  return set;
}

std::vector<plan::SharedUnits> read_shared(const YAML::Node& list, const std::string& file,
                                           std::size_t units) {
  if (!list.IsSequence()) YamlValue(list, file + ": shared").expected("a list of shared weights");
  std::vector<plan::SharedUnits> shared;
  for (std::size_t k = 0; k < list.size(); ++k) {
    const YamlValue value(list[k], position_of(file, list[k]), fmt::format("shared[{}]", k));
    shared.push_back(read_shared_set(value, units));
  }
  return shared;
}

}  // namespace

plan::Profile read_profile(const std::filesystem::path& file) {
  const YAML::Node root = load_yaml(file);
  const std::string name = file.string();
  std::array<YAML::Node, 2> lists;
  constexpr std::array<std::string_view, 2> top_keys = {"layers", "shared"};
  const YamlValue top = YamlValue::in_file(root, name);
  if (!root.IsMap()) top.expected("a map with layers");
  read_map(top, top_keys,
           [&lists](std::size_t key, const YamlValue& value) { lists[key].reset(value.node()); });
  const auto& [list, shared] = lists;
  const YamlValue layers(list, name + ": layers");
  if (!list.IsSequence()) layers.expected("a list of layers");
  if (list.size() == 0) layers.fail("the list is empty");
  plan::Profile profile;
  std::vector<plan::UnitCosts>& units = profile.units;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const FileUnit unit = read_unit(list[i], name, i);
    if (i == 0) profile.devices = unit.devices;
    if (unit.devices != profile.devices) {
      throw InputError(fmt::format("{}: layers[{}]: has times for other devices than layers[0]",
                                   position_of(name, list[i]), i));
    }
    units.insert(units.end(), index(unit.count), unit.costs);
    if (units.size() > plan::size_limits::units) {
      throw InputError(fmt::format("{}: more than {} units", name, plan::size_limits::units));
    }
  }
  if (shared.IsDefined() && !shared.IsNull()) profile.shared = read_shared(shared, name, units.size());
  return profile;
}

namespace {

/// Seconds, rounded to the clock's nanoseconds.
nlohmann::ordered_json times_json(plan::Durations times) {
  for (const plan::PassTime& pass : plan::pass_times) {
    double& seconds = times.*pass.time;
    seconds = std::round(seconds * 1e9) / 1e9;
  }
  return plan::durations_json(times);
}

}  // namespace

nlohmann::ordered_json profile_json(const runtime::MeasuredUnits& measured) {
  nlohmann::ordered_json list;
  for (std::size_t l = 0; l < measured.profile.units.size(); ++l) {
    const plan::UnitCosts& costs = measured.profile.units[l];
    const plan::StageSizes& sizes = costs.sizes;
    nlohmann::ordered_json unit = {{"name", costs.name}};
    for (std::size_t kind = 0; kind < measured.profile.devices.size(); ++kind) {
      nlohmann::ordered_json& times = unit[measured.profile.devices[kind]];
      times = times_json(costs.on(static_cast<int>(kind)));
      times["spread"] = times_json(measured.spread[kind][l]);
    }
    unit["weights"] = sizes.weights;
    if (sizes.master > 0) unit["master"] = sizes.master;
    unit.update(
        {{"activation", sizes.activation}, {"stash", sizes.stash}, {"gradient_stash", sizes.gradient_stash}});
    list.push_back(std::move(unit));
  }
  nlohmann::ordered_json json = {{"layers", std::move(list)}};
  for (const plan::SharedUnits& set : measured.profile.shared) {
    nlohmann::ordered_json& one = json["shared"].emplace_back(
        nlohmann::ordered_json{{"name", set.name}, {"units", set.units}, {"weights", set.weights}});
    if (set.master > 0) one["master"] = set.master;
  }
  return json;
}

namespace {

void emit(YAML::Emitter& out, const nlohmann::ordered_json& value) {
  if (value.is_string()) {
    out << value.get<std::string>();
  } else if (value.is_object()) {
    out << YAML::Flow << YAML::BeginMap;
    for (const auto& [key, item] : value.items()) {
      out << YAML::Key << key << YAML::Value;
      emit(out, item);
    }
    out << YAML::EndMap;
  } else if (value.is_array()) {
    out << YAML::Flow << YAML::BeginSeq;
    for (const auto& item : value) emit(out, item);
    out << YAML::EndSeq;
  } else {
    out << value.dump();  // a number
  }
}

}  // namespace

std::string profile_yaml(const runtime::MeasuredUnits& measured) {
  YAML::Emitter out;
  out << YAML::Comment(
      "Medians and, as spread, interquartile ranges of one micro-batch: seconds; sizes: bytes.");
  out << YAML::BeginMap;
  const nlohmann::ordered_json json = profile_json(measured);
  for (const auto& [key, list] : json.items()) {
    out << YAML::Key << key << YAML::Value << YAML::BeginSeq;
    for (const auto& item : list) emit(out, item);
    out << YAML::EndSeq;
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace starpipe::cli
