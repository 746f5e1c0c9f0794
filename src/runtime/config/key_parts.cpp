// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/key_parts.hpp"

#include <algorithm>

#include "starpipe/base/index.hpp"
#include "starpipe/base/interval.hpp"

namespace starpipe::runtime::keys {
namespace {

template <class Enum, std::size_t size>
void from_word(const json& from, const std::array<std::string_view, size>& words, Enum& value) {
  value = static_cast<Enum>(std::ranges::find(words, from.get<std::string>()) - words.begin());
}

}  // namespace

ValueType whole(std::uint64_t min) { return {.kind = Kind::whole, .min = min}; }
ValueType wholes(std::uint64_t min) { return {.kind = Kind::whole, .count = Count::list, .min = min}; }
ValueType number(Interval interval) { return {.kind = Kind::number, .interval = interval}; }
ValueType fp32_number(Interval interval) {
  return {.kind = Kind::number, .interval = interval, .fp32 = true};
}
ValueType boolean() { return {.kind = Kind::boolean}; }
ValueType text(Count count) { return {.count = count}; }
ValueType one_of(std::vector<std::string> words, Count count) {
  return {.count = count, .words = std::move(words)};
}

json to_json_value(const std::string& value) { return value.empty() ? json() : json(value); }
json to_json_value(const std::filesystem::path& value) { return to_json_value(value.string()); }
json to_json_value(model::Precision value) { return model::precision_words[index(value)]; }
json to_json_value(model::SampleOrder value) { return model::sample_order_words[index(value)]; }
json to_json_value(plan::Discipline value) { return plan::discipline_words[index(value)]; }
json to_json_value(NonFinitePolicy value) { return nonfinite_words[index(value)]; }
json to_json_value(MappingKind value) { return mapping_words[index(value)]; }
json to_json_value(plan::ShardPlacement value) { return plan::shard_placement_words[index(value)]; }

void from_json_value(const json& from, std::filesystem::path& value) { value = from.get<std::string>(); }
void from_json_value(const json& from, model::Precision& value) {
  from_word(from, model::precision_words, value);
}
void from_json_value(const json& from, model::SampleOrder& value) {
  from_word(from, model::sample_order_words, value);
}
void from_json_value(const json& from, plan::Discipline& value) {
  from_word(from, plan::discipline_words, value);
}
void from_json_value(const json& from, NonFinitePolicy& value) { from_word(from, nonfinite_words, value); }
void from_json_value(const json& from, MappingKind& value) { from_word(from, mapping_words, value); }
void from_json_value(const json& from, plan::ShardPlacement& value) {
  from_word(from, plan::shard_placement_words, value);
}

ConfigKey unset_when_false(ConfigKey made) {
  made.get = [get = std::move(made.get)](const Config& config) {
    json value = get(config);
    return value.get<bool>() ? value : json();
  };
  return made;
}

ConfigKey described_default(ConfigKey made, std::string text) {
  made.default_text = std::move(text);
  return made;
}
ConfigKey by_default(ConfigKey made, Condition condition, json value, std::string text) {
  made.defaults.push_back({std::move(condition), std::move(value), std::move(text)});
  return made;
}
ConfigKey required(ConfigKey made, Condition condition) {
  made.default_value = {};
  made.required = std::move(condition);
  return made;
}
ConfigKey only_with(ConfigKey made, std::string other, std::vector<std::string> values) {
  made.only_with.push_back({std::move(other), std::move(values)});
  return made;
}
ConfigKey not_with(ConfigKey made, std::string other, std::vector<std::string> values) {
  made.not_with.push_back({std::move(other), std::move(values)});
  return made;
}

ConfigKey only_named(ConfigKey made) { return not_with(std::move(made), file_key); }
ConfigKey or_from_file(ConfigKey made) { return by_default(std::move(made), {file_key}, {}, "the file's"); }
ConfigKey not_emulated(ConfigKey made) { return not_with(std::move(made), emulation_section); }

}  // namespace starpipe::runtime::keys
