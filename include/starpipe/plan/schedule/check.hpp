// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// The result of `check`.
struct CheckResult {
  /// Empty if the schedule is sound; otherwise one line that names the job, worker or stage at fault.
  std::string problem;
  /// When the problem is a cycle, its jobs: each waits for the job before it, the first for the last.
  std::vector<Job> cycle;

  [[nodiscard]] bool ok() const { return problem.empty(); }
};

/// Proves, before anything runs, that a schedule finishes whatever the timing: every job is on a worker that
/// exists, the memory limits hold, and the data dependencies, together with the workers' orders under the
/// ordered discipline, have no cycle. O(jobs).
CheckResult check(const Schedule& schedule);

/// Returns, for each worker, the largest number of stashes that it holds when it runs its jobs in the order
/// of n. A stash counts from the first to the last of those passes of its stage and micro-batch that the
/// worker runs. Where R makes the stash, F does not count. A run in this order has these peaks, so the order
/// keeps a memory limit of this number. Every job must be on a worker that exists. O(jobs).
std::vector<int> stashes_in_order(const Schedule& schedule);

/// The same for the memory of stashes. `sizes`: of a stash, by stage, or one for all.
std::vector<double> memory_in_order(const Schedule& schedule, std::span<const double> sizes);

/// Returns, for each worker, a bound for the memory of its stashes that wait at homes of one kind (host or
/// disk) at once. It holds however long jobs and copies take. L of a stash ends before its
/// B, and O begins after its F. So if a worker runs B of one stash before F of another, the first one has
/// left its home before the other comes there. `sizes`: as in `memory_in_order`, whose unit the bound has.
/// O(jobs log jobs).
std::vector<double> waiting_at_homes(const Schedule& schedule, Home home, std::span<const double> sizes);

/// Returns every job once, after all jobs that it waits for: the producers of its data and, under the ordered
/// discipline, the jobs before it on its worker. Among jobs free to go next, the smallest n comes first.
/// Throws InputError with `check`'s message if such an order does not exist.
std::vector<JobId> topological_order(const Schedule& schedule);

/// The largest sizes that users may ask for, on the command line and in Python: larger ones would only fill
/// the memory, or never end.
namespace size_limits {

inline constexpr int workers = 1 << 16;
inline constexpr int microbatches = 1 << 20;
inline constexpr int slices = 1 << 10;  ///< each reads something of all slices before it
inline constexpr int stages = 1 << 16;
inline constexpr int units = 4096;  ///< of a model that is partitioned
inline constexpr int search_workers = 1 << 10;
inline constexpr int search_microbatches = 1 << 16;
inline constexpr int search_chunks = 64;
inline constexpr int periodic_stages = 1 << 12;
inline constexpr int periodic_repetitions = 16;  ///< micro-batches of a pattern

/// Stages times micro-batches: of all schedules that one command makes, of a schedule that is searched for,
/// and of one that repeats a periodic pattern.
inline constexpr std::int64_t pairs = 20'000'000;
inline constexpr std::int64_t search_pairs = 2'000'000;
inline constexpr std::int64_t periodic_pairs = 2'000'000;

}  // namespace size_limits

/// Throws InputError, beginning with `key`, when `stages` times `microbatches` is above `max`.
void require_few_jobs(std::string_view key, std::int64_t stages, std::int64_t microbatches,
                      std::int64_t max = size_limits::pairs);

}  // namespace starpipe::plan
