// SPDX-License-Identifier: Apache-2.0
// The scheduling policy `starpipe` as StarPU sees it. PolicyCore's contract says how it schedules
// (starpipe/sched/policy_core.hpp).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <starpu.h>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/sched/policy_core.hpp"

namespace starpipe::sched {

inline constexpr const char* policy_name = "starpipe";

/// The policy, for `starpu_conf::sched_policy`. StarPU copies it.
starpu_sched_policy starpipe_policy();

/// The names of our policy and of those that StarPU brings.
std::vector<std::string> known_policies();

/// The core behind the policy that runs in StarPU's default context. Null under any other policy. Owned by
/// the policy, from starpu_init to starpu_shutdown.
PolicyCore* active_policy_core();

/// Packs the StarPU worker that must run a task, and the task's job if it has one, into the pointer
/// `starpu_task::sched_data` (STARPU_TASK_SCHED_DATA). The pointer itself holds both, so nobody owns memory.
/// A task whose sched_data is null runs on any worker that can run it.
void* pack_sched_data(int worker, std::optional<plan::JobId> job);

}  // namespace starpipe::sched
