// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/home_ways.hpp"

#include <map>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/registration.hpp"

namespace starpipe::plan {
namespace {

std::map<std::string, HomeWay, std::less<>>& registry() {
  static std::map<std::string, HomeWay, std::less<>> ways;
  return ways;
}

}  // namespace

bool register_home_way(HomeWay way) {
  const std::string name = way.name;
  if (registry().emplace(name, std::move(way)).second) return true;
  keep_registration_error(fmt::format("home '{}' is registered twice", name));
  return false;
}

std::vector<HomeWay> home_ways() {
  require_registrations();
  std::vector<HomeWay> ways;
  for (const auto& [name, way] : registry()) ways.push_back(way);
  return ways;
}

bool is_home_way(std::string_view name) { return registry().contains(name); }

const HomeWay& find_home_way(std::string_view name) {
  require_registrations();
  const auto found = registry().find(name);
  if (found == registry().end()) throw InputError(fmt::format("unknown home '{}'", name));
  return found->second;
}

}  // namespace starpipe::plan
