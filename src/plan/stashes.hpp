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

/// Calls f(Kept) for each worker that keeps what `forward` leaves: its own until F, or what of B and W runs
/// there too, has ended; each other one from the end of F to the end of the last of B and W there.
template <class Function>
void for_each_kept(const Schedule& schedule, std::span<const Span> spans, JobId forward, Function&& f) {
  const Job job = schedule.job(forward);
  const std::array readers = {schedule.backward(job.stage, job.microbatch),
                              schedule.weight_gradient(job.stage, job.microbatch)};
  const std::array workers = {schedule.compute(forward), schedule.compute(readers[0]),
                              schedule.compute(readers[1])};
  for (auto worker = workers.begin(); worker != workers.end(); ++worker) {
    if (std::find(workers.begin(), worker, *worker) != worker) continue;
    const bool own = worker == workers.begin();
    Kept kept{*worker, own ? spans[forward].start : spans[forward].end, spans[forward].end};
    for (const JobId reader : readers) {
      if (schedule.compute(reader) == *worker) kept.to = std::max(kept.to, spans[reader].end);
    }
    f(kept);
  }
}

/// Calls f(Kept) for each worker that keeps what B, which starts it, leaves for W, or what it recomputes for
/// itself.
template <class Function>
void for_each_kept_by_backward(const Schedule& schedule, std::span<const Span> spans, JobId forward,
                               Function&& f) {
  const Job job = schedule.job(forward);
  const JobId b = schedule.backward(job.stage, job.microbatch);
  const JobId w = schedule.weight_gradient(job.stage, job.microbatch);
  const bool moves = schedule.compute(b) != schedule.compute(w);
  f(Kept{schedule.compute(b), spans[b].start, moves ? spans[b].end : spans[w].end});
  if (moves) f(Kept{schedule.compute(w), spans[b].end, spans[w].end});
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
