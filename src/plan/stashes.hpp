// SPDX-License-Identifier: Apache-2.0
// What is kept for the backward pass, where and for how long: the one place that knows.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "starpipe/plan/simulate.hpp"

namespace starpipe::plan::detail {

/// Bytes that F leaves for the backward pass: the stash, or with recomputation the stage's inputs (those of
/// a first stage are the data, which are there anyway).
inline std::uint64_t kept_bytes(const Schedule& schedule, const Costs& costs, int stage) {
  if (!schedule.recompute()) return costs.size(stage).stash;
  std::uint64_t bytes = 0;
  for (const int s : schedule.graph().pred(stage)) bytes += costs.size(s).activation;
  return bytes;
}

/// A time in which a worker keeps something for B or W.
struct Kept {
  int worker;
  double from;
  double to;
};

/// Calls f(Kept) once for each worker that computes any of `jobs`: from the start of the first of these to
/// the end of the last.
template <std::size_t N, class Function>
void for_each_keeper(const Schedule& schedule, std::span<const Span> spans, const std::array<JobId, N>& jobs,
                     Function&& f) {
  for (auto job = jobs.begin(); job != jobs.end(); ++job) {
    const auto is_here = [&, worker = schedule.compute(*job)](JobId id) {
      return schedule.compute(id) == worker;
    };
    if (std::any_of(jobs.begin(), job, is_here)) continue;
    Kept kept{schedule.compute(*job), spans[*job].start, spans[*job].end};
    for (const JobId id : jobs) {
      if (!is_here(id)) continue;
      kept.from = std::min(kept.from, spans[id].start);
      kept.to = std::max(kept.to, spans[id].end);
    }
    f(kept);
  }
}

/// Calls f(Kept) for each worker that keeps what `forward` leaves for B and W.
template <class Function>
void for_each_kept(const Schedule& schedule, std::span<const Span> spans, JobId forward, Function&& f) {
  const Job job = schedule.job(forward);
  for_each_keeper(schedule, spans,
                  std::array{forward, schedule.backward(job.stage, job.microbatch),
                             schedule.weight_gradient(job.stage, job.microbatch)},
                  f);
}

/// Calls f(Kept) for each worker that keeps what B leaves for W, or recomputes for itself and W.
template <class Function>
void for_each_kept_by_backward(const Schedule& schedule, std::span<const Span> spans, JobId forward,
                               Function&& f) {
  const Job job = schedule.job(forward);
  for_each_keeper(schedule, spans,
                  std::array{schedule.backward(job.stage, job.microbatch),
                             schedule.weight_gradient(job.stage, job.microbatch)},
                  f);
}

/// Calls f(Kept) for each worker and time in which a stash is live: from F on, or with recomputation from B
/// on.
template <class Function>
void for_each_stash(const Schedule& schedule, std::span<const Span> spans, JobId forward, Function&& f) {
  if (schedule.recompute()) {
    for_each_kept_by_backward(schedule, spans, forward, f);
  } else {
    for_each_kept(schedule, spans, forward, f);
  }
}

}  // namespace starpipe::plan::detail
