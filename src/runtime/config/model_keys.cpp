// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "runtime/config/key_parts.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network_registry.hpp"

namespace starpipe::runtime::keys {
namespace {

// Returns the values of a network's key. Text that is empty is unset.
json json_of(const model::OptionValue& value) {
  return std::visit([](const auto& one) { return to_json_value(one); }, value);
}
model::OptionValue option_of(const json& value, model::OptionValue of_type) {
  std::visit([&]<class T>(T& one) { one = value.is_null() ? T() : value.get<T>(); }, of_type);
  return of_type;
}

ValueType type_of(const model::NetworkKey& key) {
  if (std::holds_alternative<double>(key.default_value)) return number(key.interval);
  if (std::holds_alternative<bool>(key.default_value)) return boolean();
  if (std::holds_alternative<std::string>(key.default_value)) return ValueType{.words = key.words};
  const bool is_list = std::holds_alternative<std::vector<int>>(key.default_value);
  ValueType type = whole(static_cast<std::uint64_t>(std::max(key.interval.min, 0.0)));
  if (key.interval.max < static_cast<double>(type.max)) {
    type.max = static_cast<std::uint64_t>(key.interval.max);
  }
  if (is_list) type.count = Count::one_or_list;
  return type;
}

/// Returns the key of a kind of network, by itself.
ConfigKey network_key(const model::NetworkKind& kind, const model::NetworkKey& own) {
  const Condition of_kind = {"model.kind", {kind.name}};
  ConfigKey made{{}, "model." + own.name, type_of(own), own.meaning, json_of(own.default_value)};
  made.defaults = {{.condition = of_kind, .value = made.default_value}};
  made.only_with = {of_kind};
  if (own.values_only) made.not_with = {emulated};
  made.set = [option = own.name, type = own.default_value](Config& config, const json& value) {
    config.model.options[option] = option_of(value, type);
  };
  made.get = [option = own.name](const Config& config) {
    const model::OptionValue value = model::option_value(config.model, option);
    const auto* const list = std::get_if<std::vector<int>>(&value);
    return list != nullptr ? one_or_list(*list) : json_of(value);
  };
  return made;
}

/// Adds the values of `other`, a type of the same kind, to `type`. A type without words allows any text.
void widen(ValueType& type, const ValueType& other) {
  type.min = std::min(type.min, other.min);
  type.max = std::max(type.max, other.max);
  if (other.interval.min < type.interval.min) {
    type.interval.min = other.interval.min;
    type.interval.above = other.interval.above;
  }
  if (other.interval.max > type.interval.max) {
    type.interval.max = other.interval.max;
    type.interval.below = other.interval.below;
  }
  if (other.words.empty()) type.words.clear();
  if (type.words.empty()) return;
  for (const std::string& word : other.words) {
    if (std::ranges::find(type.words, word) == type.words.end()) type.words.push_back(word);
  }
}

/// Returns the sentence as it stands after a colon.
std::string with_small_letter(std::string sentence) {
  if (sentence.empty()) return sentence;
  sentence.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(sentence.front())));
  return sentence;
}

/// Adds a default of a kind of network. Kinds with the same default share an entry.
void add_default(std::vector<DefaultUnder>& defaults, const std::string& kind, const json& value) {
  const auto same = std::ranges::find(defaults, value, &DefaultUnder::value);
  if (same == defaults.end()) {
    defaults.push_back({.condition = {"model.kind", {kind}}, .value = value});
  } else {
    same->condition.values.push_back(kind);
  }
}

/// Keys of all kinds of networks. Where several kinds have a key of one name, it is one key, and its meaning
/// joins theirs.
void add_network_keys(Keys& keys) {
  Keys found;
  for (const model::NetworkKind& kind : model::registered_networks()) {
    for (const model::NetworkKey& own : kind.keys) {
      ConfigKey made = network_key(kind, own);
      const auto known = std::ranges::find(found, made.name, &ConfigKey::name);
      if (known == found.end()) {
        found.push_back(std::move(made));
        continue;
      }
      known->only_with.front().values.push_back(kind.name);
      add_default(known->defaults, kind.name, made.default_value);
      widen(known->type, made.type);
      if (known->meaning != own.meaning) {
        known->meaning += fmt::format(" For {}: {}", kind.name, with_small_letter(own.meaning));
      }
    }
  }
  for (ConfigKey& made : found) {
    // A default that all kinds share, and a key that all have, need no condition.
    const auto is_shared = [&](const DefaultUnder& other) { return other.value == made.default_value; };
    if (std::ranges::all_of(made.defaults, is_shared)) {
      made.defaults.clear();
    } else {
      made.default_value = {};
    }
    if (made.only_with.front().values.size() == model::network_kinds().size()) made.only_with.clear();
    keys.push_back(std::move(made));
  }
}

}  // namespace

void add_model_and_data_keys(Keys& keys) {
  std::string kinds = "The network.";
  for (const model::NetworkKind& kind : model::registered_networks()) {
    kinds += fmt::format(" {}: {}", kind.name, kind.meaning);
  }
  Section model(keys, "model", {}, &Config::model);
  model.add("kind", {.words = model::network_kinds()}, kinds, &model::ModelConfig::kind,
            {.required = always});
  add_network_keys(keys);
  model.add("init", text(),
            "A safetensors file with the parameters to start from, or the index (.json) of several files.",
            &model::ModelConfig::init, {.not_with = {emulated}});

  KeyRules of_data;
  for (const model::NetworkKind& kind : model::registered_networks()) {
    if (kind.data.empty()) continue;  // it reads a data set of the program
    add_default(of_data.defaults, kind.name, kind.data.front());
    for (const std::string_view other : model::data_kinds) {
      if (std::ranges::find(kind.data, other) != kind.data.end()) continue;
      of_data.refused_values.push_back({std::string(other), {"model.kind", {kind.name}}});
    }
  }
  const Condition of_files = {"data.kind", {std::string(model::text_data), std::string(model::tokens_data)}};
  Section data(keys, "data", {}, &Config::data);
  data.add("kind", one_of(model::data_kinds),
           "The data, of a kind that the network reads: text (each byte is a token), tokens (token ids) or "
           "synthetic (a regression task).",
           &model::DataConfig::kind, of_data)
      .default_value = {};
  data.add("path", text(),
           "The file. tokens: flat numbers, or a file with a header of llm.c or NumPy (docs/data.md).",
           &model::DataConfig::path, {.required = always, .only_with = {of_files}});
  data.add("token_type", one_of(model::token_type_words),
           "The type of the numbers in flat files of token ids; a file with a header says its own. Needed if "
           "the ids of `model.vocabulary` do not fit uint16.",
           &model::DataConfig::token_type,
           {.default_text = "uint16", .only_with = {{"data.kind", {std::string(model::tokens_data)}}}});
  data.add("validation", text(),
           "A file of the same kind, whose loss `train` shows before, during and after the training, and "
           "`evaluate` at any time (docs/training.md).",
           &model::DataConfig::validation,
           {.required = Condition{"evaluate"}, .only_with = {of_files}, .not_with = {emulated}});
  data.add("order", one_of(model::sample_order_words),
           "Which sequences a step reads: random ones, or each `context` tokens of the file once per epoch, "
           "in shuffled order.",
           &model::DataConfig::order, {.only_with = {of_files}, .not_with = {emulated}});
}

}  // namespace starpipe::runtime::keys
