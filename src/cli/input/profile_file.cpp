// SPDX-License-Identifier: Apache-2.0
#include "cli/input/profile_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/input/yaml.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/durations_json.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::cli {
namespace {

constexpr int most_units = 4096;

struct Unit {
  plan::UnitCosts costs;
  int count = 1;
  std::vector<std::string> devices = {};
};

using Value = const YamlValue&;

void read_spread(Value value, Unit& /*unit*/) {
  if (!value.node().IsMap()) value.expected("a map of F, B and W");
}

// Reads the times on one kind of device, an index of device_kinds.
template <std::size_t kind>
void read_device(Value value, Unit& unit);

struct Key {
  std::string_view name;
  void (*read)(Value value, Unit& unit);
};
template <std::size_t pass>
constexpr Key time_key = {plan::pass_times[pass].name, [](Value v, Unit& u) {
                            u.costs.time.*plan::pass_times[pass].time = v.not_negative();
                          }};
constexpr std::array keys = {
    Key{runtime::device_kinds[0], read_device<0>},
    Key{runtime::device_kinds[1], read_device<1>},
    Key{"name", [](Value v, Unit& u) { u.costs.name = v.word(); }},
    Key{"count", [](Value v, Unit& u) { u.count = v.whole<int>(1, most_units); }},
    time_key<0>,
    time_key<1>,
    time_key<2>,
    Key{"weights", [](Value v, Unit& u) { u.costs.sizes.weights = v.bytes(); }},
    Key{"master", [](Value v, Unit& u) { u.costs.sizes.master = v.bytes(); }},
    Key{"activation", [](Value v, Unit& u) { u.costs.sizes.activation = v.bytes(); }},
    Key{"gradient", [](Value v, Unit& u) { u.costs.sizes.gradient = v.bytes(); }},
    Key{"stash", [](Value v, Unit& u) { u.costs.sizes.stash = v.bytes(); }},
    Key{"gradient_stash", [](Value v, Unit& u) { u.costs.sizes.gradient_stash = v.bytes(); }},
    Key{"spread", read_spread},
};

/// Reads the keys of a map, which must be known ones. Returns their names.
std::set<std::string> read_keys(const YAML::Node& map, const std::string& place,
                                std::span<const Key> known_keys, Unit& unit) {
  if (!map.IsMap()) YamlValue(map, place).expected("a map with F, B and W");
  std::set<std::string> seen;
  for (const auto& pair : map) {
    const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : "";
    const auto key = std::ranges::find(known_keys, name, &Key::name);
    if (key == known_keys.end()) {
      std::vector<std::string_view> known;
      for (const Key& k : known_keys) known.push_back(k.name);
      throw InputError(fmt::format("{}: unknown key {} (known: {})", place, described(pair.first),
                                   fmt::join(known, ", ")));
    }
    if (!seen.insert(name).second) throw InputError(fmt::format("{}: {} is given twice", place, name));
    key->read(YamlValue(pair.second, fmt::format("{}.{}", place, name)), unit);
  }
  return seen;
}

bool is_time(std::string_view name) {
  return std::ranges::find(plan::pass_times, name, &plan::PassTime::name) != plan::pass_times.end();
}

template <std::size_t kind>
void read_device(Value value, Unit& unit) {
  static constexpr std::array of_device = {time_key<0>, time_key<1>, time_key<2>, Key{"spread", read_spread}};
  Unit times;
  const auto seen = read_keys(value.node(), value.label(), of_device, times);
  if (std::ranges::none_of(seen, is_time)) value.fail("a time is missing (F, B or W)");
  unit.devices.emplace_back(runtime::device_kinds[kind]);
  unit.costs.others.push_back(times.costs.time);
}

Unit read_unit(const YAML::Node& map, const std::string& file, std::size_t number) {
  const std::string place = fmt::format("{}: layers[{}]", place_of(file, map), number);
  Unit unit;
  const std::set<std::string> seen = read_keys(map, place, keys, unit);
  const bool has_times = std::ranges::any_of(seen, is_time);
  if (!has_times && unit.devices.empty())
    throw InputError(fmt::format("{}: a time is missing (F, B or W)", place));
  if (has_times && !unit.devices.empty()) {
    throw InputError(fmt::format("{}: give F, B and W either directly or under {}", place,
                                 fmt::join(unit.devices, " and ")));
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

}  // namespace

plan::Profile read_profile(const std::filesystem::path& file) {
  const YAML::Node root = load_yaml(file);
  const std::string name = file.string();
  if (!root.IsMap()) YamlValue(root, name).expected("a map with layers");
  YAML::Node list;
  for (const auto& pair : root) {
    if (!pair.first.IsScalar() || pair.first.Scalar() != "layers") {
      throw InputError(fmt::format("{}: unknown key {} (known: layers)", place_of(name, pair.first),
                                   described(pair.first)));
    }
    if (list.IsDefined() && !list.IsNull()) {
      throw InputError(fmt::format("{}: layers is given twice", place_of(name, pair.first)));
    }
    list.reset(pair.second);
  }
  if (!list.IsSequence() || list.size() == 0) YamlValue(list, name + ": layers").expected("a list of layers");
  plan::Profile profile;
  std::vector<plan::UnitCosts>& units = profile.units;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Unit unit = read_unit(list[i], name, i);
    if (i == 0) profile.devices = unit.devices;
    if (unit.devices != profile.devices) {
      throw InputError(fmt::format("{}: layers[{}]: has times for other devices than layers[0]",
                                   place_of(name, list[i]), i));
    }
    units.insert(units.end(), index(unit.count), unit.costs);
    if (units.size() > most_units) {
      throw InputError(fmt::format("{}: more than {} units", name, most_units));
    }
  }
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
  return {{"layers", std::move(list)}};
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
  } else {
    out << value.dump();  // a number
  }
}

}  // namespace

std::string profile_yaml(const runtime::MeasuredUnits& measured) {
  YAML::Emitter out;
  out << YAML::Comment(
      "Medians and, as spread, interquartile ranges of one micro-batch: seconds; sizes: bytes.");
  out << YAML::BeginMap << YAML::Key << "layers" << YAML::Value << YAML::BeginSeq;
  const nlohmann::ordered_json json = profile_json(measured);
  for (const auto& unit : json.at("layers")) emit(out, unit);
  out << YAML::EndSeq << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace starpipe::cli
