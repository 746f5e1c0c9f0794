// SPDX-License-Identifier: Apache-2.0
// The parts from which the keys of each section are described: types of values, members of the configuration,
// defaults and conditions.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/numbers.hpp"
#include "model/data/make_dataset.hpp"
#include "runtime/config/config_key.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/model/memory_view.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime::keys {

using nlohmann::json;
using Kind = ValueType::Kind;
using Count = ValueType::Count;
using Keys = std::vector<ConfigKey>;

// Types of values.

ValueType whole(std::uint64_t min = 1);
ValueType wholes(std::uint64_t min);
ValueType number(Interval interval);
ValueType fp32_number(Interval interval);
ValueType boolean();
ValueType text(Count count = Count::one);
ValueType one_of(std::vector<std::string> words, Count count = Count::one);
template <std::size_t size>
ValueType one_of(const std::array<std::string_view, size>& words, Count count = Count::one) {
  return one_of(std::vector<std::string>(words.begin(), words.end()), count);
}

// Values as JSON. An empty value means unset, and becomes null.

template <class T>
json to_json_value(const T& value) {
  return json(value);
}
json to_json_value(const std::string& value);
json to_json_value(const std::filesystem::path& value);
json to_json_value(model::Precision value);
json to_json_value(model::SampleOrder value);
json to_json_value(plan::Discipline value);
json to_json_value(NonFinitePolicy value);
json to_json_value(MappingKind value);
json to_json_value(plan::ShardPlacement value);
template <class T>
json to_json_value(const std::vector<T>& value) {
  return value.empty() ? json() : json(value);
}
template <class T>
json to_json_value(const std::map<std::string, T>& value) {
  return value.empty() ? json() : json(value);
}
template <class T>
json to_json_value(const std::optional<T>& value) {
  return value ? to_json_value(*value) : json();
}

/// A list with one value as that value.
template <class T>
json one_or_list(const std::vector<T>& values) {
  return values.size() == 1 ? json(values.front()) : to_json_value(values);
}

// The way back. The value must have passed ValueType::problem; only an optional takes null.

template <class T>
void from_json_value(const json& from, T& value) {
  from.get_to(value);
}
void from_json_value(const json& from, std::filesystem::path& value);
void from_json_value(const json& from, model::Precision& value);
void from_json_value(const json& from, model::SampleOrder& value);
void from_json_value(const json& from, plan::Discipline& value);
void from_json_value(const json& from, NonFinitePolicy& value);
void from_json_value(const json& from, MappingKind& value);
void from_json_value(const json& from, plan::ShardPlacement& value);
template <class T>
void from_json_value(const json& from, std::optional<T>& value) {
  value.reset();
  if (!from.is_null()) from_json_value(from, value.emplace());
}

// Keys.

/// Returns a function that takes a configuration and returns a reference to one of its members. `members`:
/// the pointers to members that lead there.
template <class... Members>
auto at(Members... members) {
  return [members...](auto& config) -> auto& { return (config.*....*members); };
}

/// A key that is one member of the configuration; `member` returns a reference to it. Its default is the
/// member's own.
template <class Member>
ConfigKey key(std::string name, ValueType type, std::string meaning, Member member) {
  ConfigKey made;
  made.name = std::move(name);
  made.type = std::move(type);
  made.meaning = std::move(meaning);
  made.set = [member](Config& config, const json& value) { from_json_value(value, member(config)); };
  made.get = [member](const Config& config) { return to_json_value(member(config)); };
  made.default_value = made.get(Config());
  return made;
}

/// A boolean key whose `get` returns null for false, so that a condition on the key holds only when the key
/// is true (`schedule.dynamic`, `schedule.recompute`).
ConfigKey unset_when_false(ConfigKey made);

// The functions below add defaults and conditions to a key.

/// Says in words what the default is, where the value does not ("balanced by FLOPs"). The default itself does
/// not change.
ConfigKey described_default(ConfigKey made, std::string text);
/// Adds a default `value` under a condition; null: unset. `text`: the default for people; empty: the value.
ConfigKey by_default(ConfigKey made, Condition condition, json value, std::string text = {});
/// A key without a default that must be given under the condition; an empty condition always holds.
ConfigKey required(ConfigKey made, Condition condition = {});
/// The key applies only when `other` (a key, or a section) is set, by the user or by default, to one of
/// `values`; no `values`: to anything. `not_with`: the key applies only when this is not so.
ConfigKey only_with(ConfigKey made, std::string other, std::vector<std::string> values = {});
ConfigKey not_with(ConfigKey made, std::string other, std::vector<std::string> values = {});

inline constexpr const char* file_key = "schedule.file";
/// A key of named schedules.
ConfigKey only_named(ConfigKey made);
/// A key whose default is the value in the schedule's file, if `schedule.file` is given.
ConfigKey or_from_file(ConfigKey made);

inline constexpr const char* emulation_section = "runtime.emulate";
/// A key that has no effect on emulated jobs, which only wait: refused with `runtime.emulate`.
ConfigKey not_emulated(ConfigKey made);

// The keys of `checkpoint:`.

void add_checkpoint_keys(std::vector<ConfigKey>& keys);

/// Adds the keys of the section `evaluate`.
void add_evaluate_keys(std::vector<ConfigKey>& keys);

/// Adds the keys of the sections `model` and `data`, those of all kinds of networks included.
void add_model_keys(std::vector<ConfigKey>& keys);

/// Adds the keys of the section `runtime`.
void add_runtime_keys(std::vector<ConfigKey>& keys);

/// Adds the keys of the section `schedule`.
void add_schedule_keys(std::vector<ConfigKey>& keys);

/// Adds the keys of the section `training`.
void add_training_keys(std::vector<ConfigKey>& keys);

}  // namespace starpipe::runtime::keys
