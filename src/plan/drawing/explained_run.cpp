// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/drawing/explained_run.hpp"

namespace starpipe::plan {

SvgRun explained_run(const std::string& title, const RecordedStep& step) {
  return {.title = title,
          .schedule = &step.as_run,
          .timeline = &step.timeline,
          .idle = idle_parts(step),
          .path = critical_path(step)};
}

}  // namespace starpipe::plan
