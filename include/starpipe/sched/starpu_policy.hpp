// SPDX-License-Identifier: Apache-2.0
// The scheduling policy `starpipe` as StarPU sees it, for any StarPU program. PolicyCore's contract says how
// it schedules (starpipe/sched/policy_core.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <starpu.h>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/sched/policy_core.hpp"

namespace starpipe::sched {

inline constexpr const char* policy_name = "starpipe";

/// Returns the policy, for `starpu_conf::sched_policy`. StarPU copies it. STARPU_SCHED in the environment
/// wins over it.
starpu_sched_policy starpipe_policy();

/// Returns the names of our policy and of StarPU's.
std::vector<std::string> known_policies();

/// Returns StarPU's own policy of that name; nullptr if it has none.
starpu_sched_policy* policy_of_starpu(std::string_view name);

/// Returns the core behind the policy that runs in StarPU's default context. Null under any other policy, and
/// under another copy of this library that STARPU_SCHED_LIB names. Owned by the policy, from starpu_init to
/// starpu_shutdown.
PolicyCore* active_policy_core();

/// Returns the same core, for programs that must not run under another policy: when StarPU does not find the
/// policy that STARPU_SCHED names, it only warns and takes its own `lws`. Throws InputError under another
/// policy. The message names the policy that runs, and the reason: a value of STARPU_SCHED or
/// STARPU_SCHED_LIB. Throws std::logic_error before starpu_init.
PolicyCore& require_active_policy();

// The policy's knowledge of a task is packed into the pointer `starpu_task::sched_data`
// (STARPU_TASK_SCHED_DATA). The pointer itself holds it, so there is no memory to free. A task whose
// sched_data is null runs on any worker that can run it, by StarPU's priority. Workers have StarPU's numbers,
// from 0 to starpu_worker_get_count() - 1. Both functions throw std::out_of_range for a worker below 0 or
// above `largest_worker`. When a task names a worker that does not exist or cannot run it, the process ends
// with a message as soon as the task is ready.

inline constexpr int largest_worker = (1 << 13) - 1;

/// For a task that `worker` must run: the task's job of the schedule that PolicyCore::begin was given, or
/// none. Tasks without a job run in the order in which they become ready, before all jobs.
void* pack_sched_data(int worker, std::optional<plan::JobId> job);

/// The n of pack_pinned is in this range: the pointer has 48 bits for it.
inline constexpr std::int64_t smallest_n = -(std::int64_t{1} << 47);
inline constexpr std::int64_t largest_n = (std::int64_t{1} << 47) - 1;

/// For a task with a placement w and a priority n that need no schedule: `worker` runs the task, and of its
/// ready tasks the one with the smallest n first. With equal n, the task that became ready first. The
/// worker's jobs come before these tasks. Throws std::out_of_range also for an n outside of smallest_n ..
/// largest_n.
void* pack_pinned(int worker, std::int64_t n);

}  // namespace starpipe::sched
