// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/network_registry.hpp"

#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/base/registration.hpp"
#include "starpipe/model/dataset.hpp"

namespace starpipe::model {
namespace {

// Local to a function, so that registrations of other files find it constructed.
std::map<std::string, NetworkKind, std::less<>>& registry() {
  static std::map<std::string, NetworkKind, std::less<>> kinds;
  return kinds;
}

bool has_whole(const NetworkKind& kind, std::string_view name) {
  const auto key = std::ranges::find(kind.keys, name, &NetworkKey::name);
  return key != kind.keys.end() && std::holds_alternative<int>(key->default_value);
}

bool is_whole(const OptionValue& value) {
  return std::holds_alternative<int>(value) || std::holds_alternative<std::vector<int>>(value);
}

/// Returns why a kind cannot be registered, or "".
std::string problem_of(const NetworkKind& kind) {
  for (const NetworkKey& key : kind.keys) {
    if (const std::string problem = model::problem_of(key, key.default_value); !problem.empty()) {
      return fmt::format("key {}: the default {}", key.name, problem);
    }
    for (const auto& [other_name, other] : registry()) {
      const auto same = std::ranges::find(other.keys, key.name, &NetworkKey::name);
      if (same != other.keys.end() && same->default_value.index() != key.default_value.index()) {
        return fmt::format("key {}: has another type in network {}", key.name, other_name);
      }
    }
  }
  if (kind.data.empty()) return "it names no data";
  for (const std::string& data : kind.data) {
    if (std::ranges::find(data_kinds, data) == data_kinds.end()) {
      return fmt::format("data {} is not one of {}", data, fmt::join(data_kinds, ", "));
    }
    const std::vector<std::string_view> needed = data == synthetic_data
                                                     ? std::vector<std::string_view>{"inputs", "outputs"}
                                                     : std::vector<std::string_view>{"context"};
    for (const std::string_view name : needed) {
      if (!has_whole(kind, name)) return fmt::format("data {} needs a whole number as key {}", data, name);
    }
  }
  return "";
}

}  // namespace

std::string problem_of(const NetworkKey& key, const OptionValue& value) {
  const auto refused = [&](const std::string& why) { return fmt::format("{} {}", to_string(value), why); };
  if (value.index() != key.default_value.index()) return refused("is not of the key's type");
  Interval interval = key.interval;
  if (is_whole(value)) interval.min = std::max(interval.min, 0.0);
  const bool inside = std::visit(
      [&]<class T>(const T& one) {
        if constexpr (std::is_same_v<T, int> || std::is_same_v<T, double>) return interval.contains(one);
        if constexpr (std::is_same_v<T, std::vector<int>>)
          return !one.empty() && std::ranges::all_of(one, [&](int item) { return interval.contains(item); });
        return true;
      },
      value);
  if (!inside) return refused(fmt::format("is not {}", interval.text()));
  const auto* const text = std::get_if<std::string>(&value);
  if (text == nullptr || key.words.empty() || std::ranges::find(key.words, *text) != key.words.end())
    return "";
  return refused(fmt::format("is not one of {}", fmt::join(key.words, ", ")));
}

bool register_network(NetworkKind kind) {
  if (const std::string problem = problem_of(kind); !problem.empty()) {
    keep_registration_error(fmt::format("network {}: {}", kind.name, problem));
    return false;
  }
  std::string name = kind.name;
  const auto [where, added] = registry().try_emplace(std::move(name), std::move(kind));
  if (added)
    keep_registration({"network", where->first});
  else
    keep_registration_error("network " + where->first + " is registered twice");
  return added;
}

void replace_network(NetworkKind kind) {
  std::string name = kind.name;
  registry().insert_or_assign(std::move(name), std::move(kind));
}

std::vector<NetworkKind> registered_networks() {
  require_registrations();
  std::vector<NetworkKind> kinds;
  for (const auto& [name, kind] : registry()) kinds.push_back(kind);
  return kinds;
}

const NetworkKind& find_network(std::string_view name) {
  require_registrations();
  const auto found = registry().find(name);
  if (found != registry().end()) return found->second;
  throw InputError(fmt::format("model.kind: {} is not one of {}", name, fmt::join(network_kinds(), ", ")));
}

StageOp layer_op(const LayerSpec& spec, Precision precision) {
  return {StageOp::Kind::layer, make_layer(spec, precision)};
}

}  // namespace starpipe::model
