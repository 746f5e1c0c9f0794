// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/registry.hpp"

#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/plan/error.hpp"

namespace starpipe::plan {
namespace {

// A function-local static, so that registrations from other files never run before its construction.
std::map<std::string, ScheduleEntry, std::less<>>& registry() {
  static std::map<std::string, ScheduleEntry, std::less<>> entries;
  return entries;
}

}  // namespace

bool register_schedule(ScheduleEntry entry) {
  const std::string name = entry.name;
  if (!registry().emplace(name, std::move(entry)).second) {
    throw InputError(fmt::format("schedule '{}' is registered already", name));
  }
  return true;
}

std::vector<ScheduleEntry> schedule_entries() {
  std::vector<ScheduleEntry> entries;
  for (const auto& [name, entry] : registry()) entries.push_back(entry);
  return entries;
}

const ScheduleEntry& find_schedule(std::string_view name) {
  if (const auto found = registry().find(name); found != registry().end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& [known, entry] : registry()) {
    if (entry.alias == name && !name.empty()) return entry;
    names.push_back(known);
  }
  throw InputError(fmt::format("unknown schedule '{}' (known: {})", name, fmt::join(names, ", ")));
}

Schedule make_schedule(std::string_view name, const ScheduleRequest& request) {
  const ScheduleEntry& entry = find_schedule(name);
  ScheduleRequest complete = request;
  if (!request.graph) complete.graph = StageGraph::chain(entry.stages_per_worker * request.workers);
  Schedule schedule = entry.build(complete);
  return request.recompute ? schedule.with_recomputation() : schedule;
}

}  // namespace starpipe::plan
