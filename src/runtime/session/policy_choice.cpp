// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/policy_choice.hpp"

#include <algorithm>
#include <array>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <starpu.h>

#include "sched/starpu_policy.hpp"
#include "starpipe/base/environment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/runtime/config/config_rules.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::array controls = {std::pair{"on-worker", StarpuControl::on_worker},
                                 std::pair{"worker-order", StarpuControl::worker_order}};

bool library_has_policy(const std::string& library, const std::string& name) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw InputError(fmt::format("STARPU_SCHED_LIB: {}", dlerror()));
  using Find = starpu_sched_policy* (*)(const char*);
  const auto find = reinterpret_cast<Find>(dlsym(handle, "starpu_get_sched_lib_policy"));
  const bool found = find != nullptr && find(name.c_str()) != nullptr;
  dlclose(handle);
  if (find == nullptr) {
    throw InputError(fmt::format("STARPU_SCHED_LIB: {} has no starpu_get_sched_lib_policy", library));
  }
  return found;
}

}  // namespace

std::vector<std::string> policy_names() {
  std::vector<std::string> names = sched::known_policies();
  names.insert(names.begin() + 1, {controls[0].first, controls[1].first});
  return names;
}

PolicyChoice find_policy(const std::string& name, std::string_view asked_by) {
  for (const auto& [word, control] : controls) {
    if (name == word) return {.name = name, .starpu = "prio", .control = control};
  }
  const std::string library = environment("STARPU_SCHED_LIB").value_or("");
  PolicyChoice choice{.name = name, .starpu = name};
  // A second copy of our policy, in a library, would not know the schedule.
  choice.from_library = !library.empty() && library_has_policy(library, name) && name != sched::policy_name;
  const auto known = policy_names();
  if (choice.from_library || std::ranges::find(known, name) != known.end()) return choice;
  throw InputError(fmt::format("{}: unknown policy '{}' (known: {}; STARPU_SCHED_LIB can add others)",
                               asked_by, name, fmt::join(known, ", ")));
}

bool follows_schedule(const PolicyChoice& choice) {
  return choice.starpu == sched::policy_name || choice.control == StarpuControl::worker_order;
}

bool uses_window(const std::string& policy) {
  Config asked;
  asked.runtime.policy = policy;
  const std::vector<ConfigKey> keys = config_keys();
  return applies(*find_key(keys, "runtime.window"), asked, keys);
}

PolicyChoice configured_policy(const RuntimeConfig& config) {
  const std::string name = environment("STARPU_SCHED").value_or("");
  if (name.empty()) return find_policy(config.policy, "runtime.policy");
  // The keys were checked for `runtime.policy`, but STARPU_SCHED may name another policy. So `runtime.window`
  // is checked again.
  if (config.window != RuntimeConfig().window && !uses_window(name)) {
    throw InputError(fmt::format("STARPU_SCHED: runtime.window does not apply to {}", name));
  }
  return find_policy(name, "STARPU_SCHED");
}

}  // namespace starpipe::runtime
