// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "plan/explain/recorded_step.hpp"

namespace starpipe::plan {

/// Why a worker was idle. Of several causes at one time, the first in this list counts: runtime (the next job
/// was ready), recomputation, order, fill or producer, transfer, copy, runtime (anything else).
enum class IdleCause : std::uint8_t {
  fill,      ///< before its first job, which waits for jobs on other workers
  drain,     ///< after its last job
  producer,  ///< the next job waits for a job on another worker
  transfer,  ///< the next job's input is under way from another worker
  order,     ///< another job was ready, but the order in which the worker ran its jobs held it back
  /// The next job was ready and had not started. Or its inputs were there and it had not been submitted or
  /// was not yet known to be ready.
  runtime,
  copy,  ///< the next job waits for a stash that L brings back, or for memory that O frees
  /// The next job waits for another worker, which runs R. That worker may also wait for a third one, and so
  /// on, until one runs R. This R delays its B: the other jobs before B have ended. An R in a bubble is
  /// passed over.
  recomputation,
};
inline constexpr std::size_t idle_cause_count = 8;
/// In the order of the enum.
inline constexpr std::array<std::string_view, idle_cause_count> idle_cause_words = {
    "fill", "drain", "producer", "transfer", "order", "runtime", "copy", "recomputation"};
std::string_view to_string(IdleCause cause);

/// A time in which a worker computed nothing, for one cause. A worker's parts follow each other without
/// overlap, in the order of time. With its jobs they fill the makespan: boundaries are the same doubles.
struct IdlePart {
  int worker = 0;
  double start = 0;
  double end = 0;
  IdleCause cause = IdleCause::drain;
  std::optional<JobId> next = {};  ///< the job that the worker ran next; none in drain
  /// With fill, producer and order: the job of another worker for which the next job waits. With transfer:
  /// the job whose result is under way. With copy: L or O. With recomputation: R. Empty for weights, and
  /// where only the order holds a job back.
  std::optional<JobId> producer = {};
  int from = -1;                        ///< transfer: the worker that sends
  std::optional<JobId> held_back = {};  ///< order: a job that was ready
};

/// Returns the idle parts of all workers, worker by worker. A worker without jobs has one part, drain. O(jobs
/// log jobs).
std::vector<IdlePart> idle_parts(const RecordedStep& step);

/// Returns the seconds by worker and cause (index of IdleCause).
std::vector<std::array<double, idle_cause_count>> idle_seconds(std::span<const IdlePart> parts, int workers);

/// Idle time that waits for the jobs of a kernel.
struct ProducerWait : Kernel {
  double seconds = 0;  ///< sum over all workers that waited
};
/// Returns the jobs that workers waited for (causes producer, order and recomputation), the largest sum
/// first. When worker A waits for worker B, the time counts for the job that B runs. When B waits too, for
/// worker C, the time counts for the job that C runs, and so on along the chain. So the result names the slow
/// stage, not the stages that wait for it. When the chain ends at a transfer or at the runtime, the time
/// counts for no job. `parts`: of `step`. O(jobs log jobs + jobs * workers).
std::vector<ProducerWait> producer_waits(std::span<const IdlePart> parts, const RecordedStep& step);

/// Idle time while data was under way.
struct LinkWait : WorkerPair {
  double seconds = 0;  ///< cause transfer
};
/// Returns the waits by link, the largest first.
std::vector<LinkWait> link_waits(std::span<const IdlePart> parts);

/// Returns sums by key as a list of `Item{key, seconds}`, the largest first.
template <class Item, class Key>
std::vector<Item> largest_first(const std::map<Key, double>& sums) {
  std::vector<Item> items;
  for (const auto& [key, seconds] : sums) items.push_back({key, seconds});
  std::ranges::stable_sort(items, std::greater<>{}, &Item::seconds);
  return items;
}

/// Points in time of the inputs that a job receives from other workers.
struct InputWait {
  LastInput input;
  double produced = 0;  ///< end of the last producer on another worker; without one, the begin of the step
  double transfer_from = 0;  ///< the input is under way from here on
  double transfer_to = 0;    ///< and has arrived; equal to transfer_from when the job receives nothing
  double startable = 0;      ///< from here on only the worker and the runtime hold the job back
};

/// Returns the wait of job `id`. O(producers).
InputWait input_wait(const RecordedStep& step, JobId id);

}  // namespace starpipe::plan
