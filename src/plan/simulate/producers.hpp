// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan::detail {

/// Calls f(JobId) for every job that must end before `id` starts, and for those before them whose results
/// `id` reads: F's stash for W, and with recomputation the activations of preceding stages for B and BW.
template <class Function>
void for_each_producer(const Schedule& schedule, JobId id, Function&& f) {
  schedule.for_each_pred(id, f);
  const Job job = schedule.job(id);
  if (job.pass == Pass::W && !schedule.recompute()) f(schedule.forward(job.stage, job.microbatch));
  if (schedule.recompute() && (job.pass == Pass::B || job.pass == Pass::BW)) {
    for (const int stage : schedule.graph().pred(job.stage)) f(schedule.forward(stage, job.microbatch));
  }
}

}  // namespace starpipe::plan::detail
