// SPDX-License-Identifier: Apache-2.0
// Which scheduling policy a run asks StarPU for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// What StarPU itself is told of a job's place, beside its priority.
enum class Binding : std::uint8_t {
  none,    ///< nothing: the policy chooses among the workers of the rank
  worker,  ///< w: STARPU_EXECUTE_ON_WORKER
  order,   ///< w and the worker's order of n: STARPU_WORKER_ORDER too
};

struct PolicyChoice {
  std::string name;    ///< as the user calls it
  std::string starpu;  ///< the policy of StarPU's that runs
  Binding binding = Binding::none;
  bool from_library = false;  ///< that STARPU_SCHED_LIB names
};

/// Finds a policy: ours; one of StarPU's; one that the library in STARPU_SCHED_LIB has; or one of StarPU's
/// static controls, `on-worker` and `worker-order`, which bind jobs to workers before a policy (prio) sees
/// them. Throws InputError, starting with `asked_by`, for a name that is none of these, since StarPU would
/// only warn and run `lws`.
PolicyChoice find_policy(const std::string& name, std::string_view asked_by);

/// STARPU_SCHED's, as StarPU's users expect, else the configuration's.
PolicyChoice configured_policy(const RuntimeConfig& config);

/// All names that `find_policy` takes without a library.
std::vector<std::string> policy_names();

}  // namespace starpipe::runtime
