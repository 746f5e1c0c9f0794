// SPDX-License-Identifier: Apache-2.0
// The parts from which the keys of each section are described: types of values, rules, and the way to the
// member of a configuration that a key sets.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/data/make_dataset.hpp"
#include "runtime/config/config_keys.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/model/memory_view.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime::keys {

using nlohmann::json;
using Kind = ValueType::Kind;
using Count = ValueType::Count;
using Keys = std::vector<ConfigKey>;

// Types of values.

inline ValueType whole(std::uint64_t min = 1) { return {.kind = Kind::whole, .min = min}; }
inline ValueType wholes(std::uint64_t min) { return {.kind = Kind::whole, .count = Count::list, .min = min}; }
inline ValueType number(Interval interval) { return {.kind = Kind::number, .interval = interval}; }
inline ValueType fp32_number(Interval interval) {
  return {.kind = Kind::number, .interval = interval, .fp32 = true};
}
inline ValueType boolean() { return {.kind = Kind::boolean}; }
inline ValueType text(Count count = Count::one) { return {.count = count}; }
inline ValueType one_of(std::span<const std::string_view> words, Count count = Count::one) {
  return {.count = count, .words = {words.begin(), words.end()}};
}

// Conditions and defaults that several keys share.

inline const Condition always = {};
inline const Condition emulated = {.key = "runtime.emulate"};
/// The schedule comes from a file and not from its name.
inline const Condition schedule_in_file = {.key = "schedule.file"};
/// A policy that runs the schedule's own order. Others choose the order or the workers at run time.
inline const Condition ordered_policy = {.key = "runtime.policy", .values = {"starpipe", "worker-order"}};
inline const DefaultUnder value_in_file = {.condition = schedule_in_file, .value = {}, .text = "the file's"};

/// Return the words of each enum of the configuration, in its order.
inline std::span<const std::string_view> words_of(model::Precision) { return model::precision_words; }
inline std::span<const std::string_view> words_of(model::SampleOrder) { return model::sample_order_words; }
inline std::span<const std::string_view> words_of(model::TokenType) { return model::token_type_words; }
inline std::span<const std::string_view> words_of(model::SliceSizes) { return model::slice_size_words; }
inline std::span<const std::string_view> words_of(plan::Discipline) { return plan::discipline_words; }
inline std::span<const std::string_view> words_of(plan::ShardPlacement) {
  return plan::shard_placement_words;
}
inline std::span<const std::string_view> words_of(NonFinitePolicy) { return nonfinite_words; }
inline std::span<const std::string_view> words_of(MappingKind) { return mapping_words; }

/// Returns a value as JSON: null for an empty one, which means unset.
template <class T>
json to_json_value(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return words_of(value)[index(value)];
  } else if constexpr (std::same_as<T, plan::Home>) {
    return to_string(value);
  } else if constexpr (std::same_as<T, std::filesystem::path>) {
    return to_json_value(value.string());
  } else if constexpr (requires { value.has_value(); }) {
    return value ? to_json_value(*value) : json();
  } else if constexpr (requires { value.empty(); }) {
    if (value.empty()) return {};
    if constexpr (requires { requires std::is_enum_v<typename T::value_type>; } ||
                  std::same_as<T, std::vector<plan::Home>>) {
      json list = json::array();
      for (const auto& item : value) list.push_back(to_json_value(item));
      return list;
    } else {
      return value;
    }
  } else {
    return value;
  }
}

/// Returns a list with one value as that value.
template <class T>
json one_or_list(const std::vector<T>& values) {
  return values.size() == 1 ? to_json_value(values.front()) : to_json_value(values);
}

/// The way back from `to_json_value`. The value must have passed ValueType::problem; only an optional takes
/// null.
template <class T>
void from_json_value(const json& from, T& value) {
  if constexpr (std::is_enum_v<T>) {
    const auto words = words_of(value);
    value = static_cast<T>(std::ranges::find(words, from.get<std::string>()) - words.begin());
  } else if constexpr (std::same_as<T, plan::Home>) {
    value = plan::parse_home(from.get<std::string>());
  } else if constexpr (std::same_as<T, std::filesystem::path>) {
    value = from.get<std::string>();
  } else if constexpr (requires { value.has_value(); }) {
    value.reset();
    if (!from.is_null()) from_json_value(from, value.emplace());
  } else if constexpr (requires { requires std::is_enum_v<typename T::value_type>; } ||
                       std::same_as<T, std::vector<plan::Home>>) {
    value.clear();
    for (const json& item : from) from_json_value(item, value.emplace_back());
  } else {
    from.get_to(value);
  }
}

/// Adds the keys of a section to `keys`. Pointers to members lead from a configuration to the struct that has
/// the section's values.
template <class... Path>
class Section {
 public:
  /// `common`: conditions of all keys of the section.
  Section(Keys& keys, std::string name, KeyRules common, Path... path)
      : keys_(keys), name_(std::move(name)), common_(std::move(common)), path_(path...) {}

  /// Adds a key that sets `member`, whose initial value is the default. A required key has no default. The
  /// returned reference is valid until the next key is added.
  template <class Member>
  ConfigKey& add(const std::string& name, ValueType type, std::string meaning, Member member,
                 KeyRules rules = {}) {
    rules.only_with.insert(rules.only_with.begin(), common_.only_with.begin(), common_.only_with.end());
    rules.not_with.insert(rules.not_with.begin(), common_.not_with.begin(), common_.not_with.end());
    const auto at = [ path = path_, member ](auto& config) -> auto& {
      return std::apply(
          [&](auto... parts) -> auto& { return (config.*....*parts).*member; }, path);
    };
    ConfigKey& made = keys_.emplace_back(
        ConfigKey{std::move(rules), name_ + "." + name, std::move(type), std::move(meaning)});
    made.set = [at](Config& config, const json& value) { from_json_value(value, at(config)); };
    made.get = [at](const Config& config) { return to_json_value(at(config)); };
    if (!made.required) made.default_value = made.get(Config());
    return made;
  }

 private:
  Keys& keys_;
  std::string name_;
  KeyRules common_;
  std::tuple<Path...> path_;
};

// Each adds the keys of the sections in its name. `model` has the keys of all kinds of networks.

void add_model_and_data_keys(Keys& keys);
void add_training_keys(Keys& keys);
void add_checkpoint_keys(Keys& keys);
void add_evaluate_keys(Keys& keys);
void add_schedule_keys(Keys& keys);
void add_runtime_keys(Keys& keys);

}  // namespace starpipe::runtime::keys
