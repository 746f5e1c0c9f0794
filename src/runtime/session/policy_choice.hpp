// SPDX-License-Identifier: Apache-2.0
// Which scheduling policy a run asks StarPU for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/runtime/config/config.hpp"

struct starpu_sched_policy;

namespace starpipe::runtime {

/// StarPU's static controls: the facts about a job that StarPU gets besides its priority.
enum class StarpuControl : std::uint8_t {
  none,          ///< nothing: the policy chooses among the workers of the rank, or is ours
  on_worker,     ///< the worker (STARPU_EXECUTE_ON_WORKER)
  worker_order,  ///< the worker, and the position in the worker's order (STARPU_WORKER_ORDER)
};

struct PolicyChoice {
  std::string name;    ///< the user's name for it
  std::string starpu;  ///< StarPU's name of the policy that runs
  StarpuControl control = StarpuControl::none;
  starpu_sched_policy* policy = nullptr;  ///< StarPU's, or the library's; null for ours
  std::shared_ptr<void> library = {};     ///< of STARPU_SCHED_LIB, when the policy comes from there
};

/// Finds a policy: ours; one of StarPU's; one that the library in STARPU_SCHED_LIB has; or one of StarPU's
/// static controls, `on-worker` and `worker-order`, which bind jobs to workers before a policy (prio) sees
/// them. Throws InputError, starting with `asked_by`, for a name that is none of these, since StarPU would
/// only warn and run `lws`.
PolicyChoice find_policy(const std::string& name, std::string_view asked_by);

/// Returns the policy that STARPU_SCHED names, as StarPU's users expect, else the configuration's. Throws
/// InputError when a key of `config` does not apply under the policy of STARPU_SCHED.
PolicyChoice configured_policy(const Config& config);

/// Throws InputError where links that transfers share cannot be emulated: between ranks, without prefetch,
/// and under a policy that chooses the workers. No process sees all transfers then, or none is sent ahead.
void check_shared_links(const RuntimeConfig& config, const PolicyChoice& choice, int ranks);

/// True if a run under the policy has the schedule's placement and order. Other policies choose workers, the
/// order or both while they run.
bool follows_schedule(const PolicyChoice& choice);

/// Returns the keys that `config` sets and that have an effect under some policies only.
std::vector<std::string> keys_of_policies(const Config& config);

/// Returns the policies, among `policies`, under which the key has no effect.
std::vector<std::string> policies_without(const std::string& key, std::span<const std::string> policies);

/// Returns all names that `find_policy` accepts without a library.
std::vector<std::string> policy_names();

}  // namespace starpipe::runtime
