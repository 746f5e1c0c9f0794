// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/network_registry.hpp"

#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/registration.hpp"

namespace starpipe::model {
namespace {

// Local to a function, so that registrations of other files find it constructed.
std::map<std::string, NetworkKind, std::less<>>& registry() {
  static std::map<std::string, NetworkKind, std::less<>> kinds;
  return kinds;
}

}  // namespace

bool register_network(NetworkKind kind) {
  std::string name = kind.name;
  const auto [where, added] = registry().try_emplace(std::move(name), std::move(kind));
  if (!added) keep_registration_error("network " + where->first + " is registered twice");
  return added;
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
