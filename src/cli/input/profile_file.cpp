// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/input/input_files.hpp"
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
  std::array<std::optional<plan::Durations>, runtime::device_kinds.size()> on_devices = {};
  std::array<std::vector<std::vector<plan::Durations>>, runtime::device_kinds.size()> on_slices = {};

  [[nodiscard]] std::vector<std::string> devices() const {
    std::vector<std::string> names;
    for (std::size_t kind = 0; kind < on_devices.size(); ++kind) {
      if (on_devices[kind]) names.emplace_back(runtime::device_kinds[kind]);
    }
    return names;
  }
};

using Value = const YamlValue&;
using UnitKey = MapKey<FileUnit>;

constexpr UnitKey spread = {"spread", [](Value value, FileUnit& /*unit*/) {
                              if (!value.node().IsMap()) value.expected("a map of F, B and W");
                            }};
plan::Durations& times_of(FileUnit& unit) { return unit.costs.time; }
constexpr std::array slice_keys = {time_key<0, FileUnit, times_of>, time_key<1, FileUnit, times_of>,
                                   time_key<2, FileUnit, times_of>};
constexpr UnitKey of_slices = {
    "slices", [](Value value, FileUnit& unit) {
      std::vector<plan::Durations>& slices = unit.costs.slices.emplace_back();
      for (const YamlValue& item : value.items("a list of times, one map of F, B and W for each slice")) {
        FileUnit slice;
        if (read_map<FileUnit>(item, slice_keys, slice).size() != slice_keys.size())
          item.fail("a time is missing (F, B and W)");
        slices.push_back(slice.costs.time);
      }
      if (slices.size() < 2) value.fail("needs at least two slices");
    }};
constexpr std::array time_keys = {time_key<0, FileUnit, times_of>, time_key<1, FileUnit, times_of>,
                                  time_key<2, FileUnit, times_of>, spread, of_slices};

bool has_times(const std::set<std::string>& seen) {
  return std::ranges::any_of(
      plan::pass_times, [&](const plan::PassTime& pass) { return seen.contains(std::string(pass.name)); });
}

/// The times on one kind of device, an index of device_kinds.
template <std::size_t kind>
constexpr UnitKey device_key = {runtime::device_kinds[kind], [](Value value, FileUnit& unit) {
                                  FileUnit times;
                                  if (!has_times(read_map<FileUnit>(value, time_keys, times)))
                                    value.fail("a time is missing (F, B or W)");
                                  unit.on_devices[kind] = times.costs.time;
                                  unit.on_slices[kind] = times.costs.slices;
                                }};

constexpr std::array unit_keys = {
    device_key<0>,
    device_key<1>,
    UnitKey{"name", [](Value v, FileUnit& u) { u.costs.name = v.word(); }},
    UnitKey{"count", [](Value v, FileUnit& u) { u.count = v.whole<int>(1, plan::size_limits::units); }},
    time_keys[0],
    time_keys[1],
    time_keys[2],
    of_slices,
    UnitKey{"weights", [](Value v, FileUnit& u) { u.costs.sizes.weights = v.bytes(); }},
    UnitKey{"master", [](Value v, FileUnit& u) { u.costs.sizes.master = v.bytes(); }},
    UnitKey{"activation", [](Value v, FileUnit& u) { u.costs.sizes.activation = v.bytes(); }},
    UnitKey{"gradient", [](Value v, FileUnit& u) { u.costs.sizes.gradient = v.bytes(); }},
    UnitKey{"stash", [](Value v, FileUnit& u) { u.costs.sizes.stash = v.bytes(); }},
    UnitKey{"gradient_stash", [](Value v, FileUnit& u) { u.costs.sizes.gradient_stash = v.bytes(); }},
    spread,
};

FileUnit read_unit(const YamlValue& value) {
  FileUnit unit;
  const std::set<std::string> seen = read_map<FileUnit>(value, unit_keys, unit);
  const std::vector<std::string> devices = unit.devices();
  if (!has_times(seen) && devices.empty()) value.fail("a time is missing (F, B or W)");
  if (has_times(seen) && !devices.empty()) {
    value.fail(fmt::format("give F, B and W either directly or under {}", fmt::join(devices, " and ")));
  }
  // The times of the first kind of device go to `time`.
  for (const std::optional<plan::Durations>& times : unit.on_devices) {
    if (times) unit.costs.others.push_back(*times);
  }
  for (const auto& slices : unit.on_slices)
    unit.costs.slices.insert(unit.costs.slices.end(), slices.begin(), slices.end());
  const std::size_t kinds = std::max<std::size_t>(1, devices.size());
  const auto of_other_number = [&](const auto& slices) {
    return slices.size() != unit.costs.slices.front().size();
  };
  if (!unit.costs.slices.empty() &&
      (unit.costs.slices.size() != kinds || std::ranges::any_of(unit.costs.slices, of_other_number)))
    value.fail("slices: each kind of device needs the times of as many slices");
  if (!devices.empty()) {
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
                for (const YamlValue& item : v.items("a list of units such as [0, 5]"))
                  set.units.push_back(item.whole<int>(0));
              },
              /*required=*/true},
    SharedKey{"weights", [](Value v, plan::SharedUnits& set) { set.weights = v.bytes(); }, /*required=*/true},
    SharedKey{"master", [](Value v, plan::SharedUnits& set) { set.master = v.bytes(); }},
};

/// `units`: how many there are in the profile.
plan::SharedUnits read_shared(const YamlValue& value, std::size_t units) {
  plan::SharedUnits set;
  read_map<plan::SharedUnits>(value, shared_keys, set);
  if (set.units.empty()) value.fail("units: the list is empty");
  if (std::ranges::adjacent_find(set.units, std::greater_equal<>()) != set.units.end())
    value.fail(fmt::format("units: [{}] does not ascend", fmt::join(set.units, ", ")));
  if (std::cmp_greater_equal(set.units.back(), units))
    value.fail(fmt::format("units: there is no unit {}; the units are 0 to {}", set.units.back(), units - 1));
  return set;
}

}  // namespace

plan::Profile read_profile(const std::filesystem::path& file) {
  const std::string name = file.string();
  const YamlValue top = YamlValue::in_file(load_yaml(file), name);
  if (!top.node().IsMap()) top.expected("a map with layers");
  std::array<YAML::Node, 4> lists;
  constexpr std::array<std::string_view, 4> top_keys = {"layers", "shared", "slice_sizes", "even_slices"};
  read_map(top, top_keys,
           [&lists](std::size_t key, const YamlValue& value) { lists[key].reset(value.node()); });
  const auto& [layers, shared, sizes, even] = lists;  // nobody reads the last but people
  if (layers.IsSequence() && layers.size() == 0) top.fail("layers: the list is empty");
  plan::Profile profile;
  std::optional<std::vector<std::string>> devices;
  for (const YamlValue& value : top.member("layers", layers).items_in(name, "a list of layers")) {
    const FileUnit unit = read_unit(value);
    if (!devices) devices = unit.devices();
    if (unit.devices() != *devices) value.fail("has times for other devices than layers[0]");
    const auto slices_of = [](const plan::UnitCosts& of) {
      return of.slices.empty() ? 0 : of.slices.front().size();
    };
    if (!profile.units.empty() && slices_of(unit.costs) != slices_of(profile.units.front()))
      value.fail("has times of another number of slices than layers[0]");
    profile.units.insert(profile.units.end(), index(unit.count), unit.costs);
    if (profile.units.size() > plan::size_limits::units)
      throw InputError(fmt::format("{}: more than {} units", name, plan::size_limits::units));
  }
  profile.devices = *devices;
  if (sizes.IsDefined() && !sizes.IsNull()) {
    for (const YamlValue& value :
         top.member("slice_sizes", sizes).items_in(name, "a list of numbers of tokens"))
      profile.slice_sizes.push_back(value.whole<int>(1));
  }
  const std::vector<std::vector<plan::Durations>>& slices = profile.units.front().slices;
  if (profile.slice_sizes.size() != (slices.empty() ? 0 : slices.front().size()))
    top.fail("slice_sizes: needs the tokens of each slice that layers have times of");
  if (!shared.IsDefined() || shared.IsNull() || (shared.IsSequence() && shared.size() == 0)) return profile;
  for (const YamlValue& value : top.member("shared", shared).items_in(name, "a list of shared weights"))
    profile.shared.push_back(read_shared(value, profile.units.size()));
  return profile;
}

namespace {

/// Returns the times in seconds, rounded to the clock's nanoseconds.
nlohmann::ordered_json times_json(plan::Durations times) {
  for (const plan::PassTime& pass : plan::pass_times) {
    double& seconds = times.*pass.time;
    seconds = std::round(seconds * 1e9) / 1e9;
  }
  return plan::durations_json(times);
}

/// Writes a value on one line.
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
      for (std::size_t k = 0; kind < costs.slices.size() && k < costs.slices[kind].size(); ++k)
        times["slices"].push_back(times_json(costs.slices[kind][k]));
    }
    unit["weights"] = sizes.weights;
    if (sizes.master > 0) unit["master"] = sizes.master;
    unit.update(
        {{"activation", sizes.activation}, {"stash", sizes.stash}, {"gradient_stash", sizes.gradient_stash}});
    list.push_back(std::move(unit));
  }
  nlohmann::ordered_json json = {{"layers", std::move(list)}};
  if (!measured.profile.slice_sizes.empty()) {
    json["slice_sizes"] = measured.profile.slice_sizes;
    json["even_slices"] = measured.even_slices;
  }
  for (const plan::SharedUnits& set : measured.profile.shared) {
    nlohmann::ordered_json& one = json["shared"].emplace_back(
        nlohmann::ordered_json{{"name", set.name}, {"units", set.units}, {"weights", set.weights}});
    if (set.master > 0) one["master"] = set.master;
  }
  return json;
}

std::string profile_yaml(const runtime::MeasuredUnits& measured) {
  YAML::Emitter out;
  out << YAML::Comment(
      "Medians and, as spread, interquartile ranges of one micro-batch: seconds; sizes: bytes.");
  out << YAML::BeginMap;
  const nlohmann::ordered_json json = profile_json(measured);
  for (const auto& [key, list] : json.items()) {
    out << YAML::Key << key << YAML::Value;
    if (!list.is_array()) {
      emit(out, list);
      continue;
    }
    out << YAML::BeginSeq;
    for (const auto& item : list) emit(out, item);
    out << YAML::EndSeq;
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace starpipe::cli
