// SPDX-License-Identifier: Apache-2.0
// The registries of layers and losses, one for each type of factory.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starpipe/base/registration.hpp"

namespace starpipe::model::detail {

/// Factories by kind.
template <class Factory>
using Registry = std::map<std::string, Factory, std::less<>>;

// Function-local, so that registrations in other translation units find it constructed.
template <class Factory>
Registry<Factory>& registry() {
  static Registry<Factory> factories;
  return factories;
}

/// Registers a factory. `registered`: what it makes, for the error of a second registration. Returns whether
/// it was added.
template <class Factory>
bool add_factory(std::string_view registered, std::string kind, Factory factory) {
  const auto [where, added] = registry<Factory>().try_emplace(std::move(kind), std::move(factory));
  if (added)
    keep_registration({std::string(registered), where->first});
  else
    keep_registration_error(fmt::format("{} kind {} is registered twice", registered, where->first));
  return added;
}

/// The factory of a kind; null when there is none.
template <class Factory>
const Factory* find_factory(std::string_view kind) {
  const auto found = registry<Factory>().find(kind);
  return found == registry<Factory>().end() ? nullptr : &found->second;
}

/// All registered kinds, sorted.
template <class Factory>
std::vector<std::string> registered_kinds() {
  std::vector<std::string> result;
  for (const auto& entry : registry<Factory>()) result.push_back(entry.first);
  return result;
}

}  // namespace starpipe::model::detail
