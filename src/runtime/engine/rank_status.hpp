// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace starpipe::runtime {

/// The parts of a step, as a rank goes through them.
enum class StepPhase : std::int32_t {
  outside,    ///< between two steps, or before the first
  beginning,  ///< it waits for all ranks to begin the step
  running,    ///< its tasks run
  ending,     ///< its tasks have ended; it waits for the other ranks and their results
};

/// The status that a rank sends to the others. Plain data, sent as bytes. A task is an index into the graph's
/// tasks; -1: none.
struct RankStatus {
  StepPhase phase = StepPhase::outside;
  std::int32_t step = -1;     ///< from 0; the last one when `outside`
  std::int32_t next = -1;     ///< the rank's first task, in the graph's order, that has not ended
  std::int32_t running = -1;  ///< the first of its tasks that runs
  double running_for = 0;     ///< seconds since that task started
  double transfer_for = -1;  ///< seconds since the oldest emulated transfer under way started; negative: none
  /// Whether this is about the evaluation after step `step`; -1 there: before the first step.
  std::int32_t evaluates = 0;
  std::uint64_t ended = 0;  ///< number of tasks that have ended since the start of the run
};

/// "step 3", "the evaluation after step 3" or "the evaluation before the first step".
inline std::string part_of_run(const RankStatus& status) {
  if (status.evaluates == 0) return "step " + std::to_string(status.step + 1);
  return status.step < 0 ? "the evaluation before the first step"
                         : "the evaluation after step " + std::to_string(status.step + 1);
}

/// The latest status that a rank has received from another rank, or its own.
struct RankNews {
  RankStatus status;
  double age = 0;  ///< seconds since it arrived
};

/// Limits of the watchdog, in seconds.
struct NewsLimits {
  double silent = 0;     ///< a rank whose last status is older is silent
  double long_task = 0;  ///< a task or an emulated transfer that has lasted for longer is no progress
};

}  // namespace starpipe::runtime
