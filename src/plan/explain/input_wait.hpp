// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/explain/recorded_step.hpp"

namespace starpipe::plan::detail {

/// What the inputs of a job from other workers did before it started, as points in time.
struct InputWait {
  LastInput input;
  double produced = 0;  ///< end of the last producer on another worker; without one, the begin of the step
  double transfer_from = 0;  ///< the input is under way from here on
  double transfer_to = 0;    ///< and has arrived; equal to transfer_from when the job receives nothing
  double startable = 0;      ///< from here on only the worker and the runtime hold the job back
};

/// That of job `id`. O(producers).
InputWait input_wait(const RecordedStep& step, JobId id);

}  // namespace starpipe::plan::detail
