// SPDX-License-Identifier: Apache-2.0
// The data that workers keep for backward passes: where, and for how long. No other file decides this.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// Calls f(JobId) for each job that reads the output of `forward`: F of the succeeding stages, and with
/// recomputation their B.
template <class Function>
void for_each_output_reader(const Schedule& schedule, JobId forward, Function&& f) {
  const Job job = schedule.job(forward);
  for (const int next : schedule.graph().succ(job.stage)) {
    f(schedule.forward(next, job.microbatch));
    if (schedule.recompute()) f(schedule.backward(next, job.microbatch));
  }
}

/// A worker keeps a datum for a backward pass from the start of its job `first` to the end of its job `last`.
struct Kept {
  JobId first;
  JobId last;
};

/// Calls f(Kept) once for each worker that computes any of `jobs`: the worker keeps the datum from the start
/// of the first of its jobs to the end of the last. `position`: by JobId, index in the order in which the
/// job's worker runs its jobs.
template <class Function>
void for_each_keeper(const Schedule& schedule, std::span<const std::uint32_t> position,
                     std::span<const JobId> jobs, Function&& f) {
  for (auto job = jobs.begin(); job != jobs.end(); ++job) {
    const auto is_here = [&, worker = schedule.compute(*job)](JobId id) {
      return schedule.compute(id) == worker;
    };
    if (std::any_of(jobs.begin(), job, is_here)) continue;
    Kept kept{*job, *job};
    for (const JobId id : jobs) {
      if (!is_here(id)) continue;
      if (position[id] < position[kept.first]) kept.first = id;
      if (position[id] > position[kept.last]) kept.last = id;
    }
    f(kept);
  }
}

/// Calls f(Kept) for each worker that keeps the gradient stash, which B makes for W. The backward pass of
/// `forward`'s stage and micro-batch must be split.
template <class Function>
void for_each_gradient_stash(const Schedule& schedule, std::span<const std::uint32_t> position, JobId forward,
                             Function&& f) {
  const Job job = schedule.job(forward);
  for_each_keeper(schedule, position,
                  std::array{schedule.backward(job.stage, job.microbatch),
                             schedule.weight_gradient(job.stage, job.microbatch)},
                  f);
}

/// Calls f(Kept) for each worker that keeps the stash. On the worker that makes it, it lives from the start
/// of F, or from the start of B with recomputation.
template <class Function>
void for_each_stash(const Schedule& schedule, std::span<const std::uint32_t> position, JobId forward,
                    Function&& f) {
  if (schedule.forward_only()) return;
  const Job job = schedule.job(forward);
  for_each_keeper(schedule, position,
                  std::array{schedule.stash_maker(job.stage, job.microbatch),
                             schedule.backward(job.stage, job.microbatch),
                             schedule.weight_gradient(job.stage, job.microbatch)},
                  f);
}

/// Calls f(Kept) for each worker that keeps the output of `forward` as an input of a recomputation. Without
/// recomputation there is none.
template <class Function>
void for_each_input_kept(const Schedule& schedule, std::span<const std::uint32_t> position, JobId forward,
                         Function&& f) {
  if (!schedule.recompute()) return;
  std::vector<JobId> readers;
  for_each_output_reader(schedule, forward, [&](JobId id) { readers.push_back(id); });
  for_each_keeper(schedule, position, readers, f);
}

}  // namespace starpipe::plan
