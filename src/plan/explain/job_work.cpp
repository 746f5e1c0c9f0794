// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/job_work.hpp"

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan::detail {

JobWork::JobWork(const Schedule& schedule, std::span<const Durations> work) : work_(work) {
  if (work.size() == 1 || work.size() == index(schedule.stages())) return;
  throw InputError(fmt::format("work of {} stages, the schedule has {}", work.size(), schedule.stages()));
}

double JobWork::of(int stage, Pass pass) const {
  return (work_.size() == 1 ? work_.front() : work_[index(stage)]).of(pass);
}

}  // namespace starpipe::plan::detail
