// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/policy_choice.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <starpu.h>

#include "base/environment.hpp"
#include "runtime/config/config_keys.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/sched/starpu_policy.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::array controls = {std::pair{"on-worker", StarpuControl::on_worker},
                                 std::pair{"worker-order", StarpuControl::worker_order}};

// Returns the policy of a library; nullptr if the library does not have it. `handle` becomes the library.
starpu_sched_policy* policy_of_library(const std::string& library, const std::string& name,
                                       std::shared_ptr<void>& handle) {
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) throw InputError(fmt::format("STARPU_SCHED_LIB: {}", dlerror()));
  handle.reset(opened, dlclose);
  using Find = starpu_sched_policy* (*)(const char*);
  const auto find = reinterpret_cast<Find>(dlsym(opened, "starpu_get_sched_lib_policy"));
  if (find == nullptr)
    throw InputError(fmt::format("STARPU_SCHED_LIB: {} has no starpu_get_sched_lib_policy", library));
  // A copy of our own library has no other policy, and would end the process if asked for one.
  using List = starpu_sched_policy** (*)();
  const auto list = reinterpret_cast<List>(dlsym(opened, "starpu_get_sched_lib_policies"));
  if (list != nullptr && *list() != nullptr && (*list())->policy_name == std::string_view(sched::policy_name))
    return name == sched::policy_name ? *list() : nullptr;
  return find(name.c_str());
}

// True if the key has an effect under this policy.
bool applies_under(const std::string& policy, const std::string& key) {
  Config asked;
  asked.runtime.policy = policy;
  const std::vector<ConfigKey> keys = config_keys();
  return applies(*find_key(keys, key), asked, keys);
}

}  // namespace

std::vector<std::string> policy_names() {
  std::vector<std::string> names = sched::known_policies();
  names.insert(names.begin() + 1, {controls[0].first, controls[1].first});
  return names;
}

PolicyChoice find_policy(const std::string& name, std::string_view asked_by) {
  for (const auto& [word, control] : controls) {
    if (name == word)
      return {.name = name, .starpu = "prio", .control = control, .policy = sched::policy_of_starpu("prio")};
  }
  const std::string library = environment("STARPU_SCHED_LIB").value_or("");
  PolicyChoice choice{.name = name, .starpu = name};
  if (!library.empty()) choice.policy = policy_of_library(library, name, choice.library);
  if (choice.policy == nullptr) {
    choice.policy = sched::policy_of_starpu(name);
    choice.library.reset();
  }
  // A second copy of our policy, in a library, would not know the schedule.
  if (choice.policy != nullptr || name == sched::policy_name) return choice;
  const auto known = policy_names();
  throw InputError(fmt::format("{}: unknown policy '{}' (known: {}; STARPU_SCHED_LIB can add others)",
                               asked_by, name, fmt::join(known, ", ")));
}

void check_shared_links(const RuntimeConfig& config, const PolicyChoice& choice, int ranks) {
  if (!config.emulate || !config.emulate->links.shared()) return;
  const auto refuse = [&](std::string_view problem) {
    throw InputError(fmt::format("runtime.emulate.links: {} has links that transfers share; they are {}",
                                 config.emulate->links_file, problem));
  };
  if (ranks > 1) refuse("emulated in one rank only");
  if (!config.emulate->prefetch) refuse("emulated with prefetch only");
  if (choice.starpu != sched::policy_name && choice.control == StarpuControl::none)
    refuse(fmt::format("not emulated under {}, which chooses the workers", choice.name));
}

bool follows_schedule(const PolicyChoice& choice) {
  return choice.starpu == sched::policy_name || choice.control == StarpuControl::worker_order;
}

std::vector<std::string> keys_of_policies(const Config& config) {
  std::vector<std::string> keys;
  if (config.runtime.window != RuntimeConfig().window) keys.emplace_back("runtime.window");
  if (!config.schedule.memory_limits.empty()) keys.emplace_back("schedule.memory_limit");
  if (!config.runtime.memory_limits.empty()) keys.emplace_back("runtime.memory_limit");
  if (config.schedule.dynamic) keys.emplace_back("schedule.dynamic");
  return keys;
}

std::vector<std::string> policies_without(const std::string& key, std::span<const std::string> policies) {
  std::vector<std::string> without;
  std::ranges::copy_if(policies, std::back_inserter(without),
                       [&](const std::string& policy) { return !applies_under(policy, key); });
  return without;
}

PolicyChoice configured_policy(const Config& config) {
  const std::string name = environment("STARPU_SCHED").value_or("");
  if (name.empty()) return find_policy(config.runtime.policy, "runtime.policy");
  // The keys were checked for `runtime.policy`, but STARPU_SCHED may name another policy.
  for (const std::string& key : keys_of_policies(config)) {
    if (!applies_under(name, key))
      throw InputError(fmt::format("STARPU_SCHED: {} does not apply to {}", key, name));
  }
  return find_policy(name, "STARPU_SCHED");
}

}  // namespace starpipe::runtime
