// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/input_wait.hpp"

#include <algorithm>

namespace starpipe::plan::detail {

InputWait input_wait(const RecordedStep& step, JobId id) {
  InputWait wait;
  wait.input = last_input(step.as_run, step.timeline, id);
  wait.produced = wait.input.produced;
  const double ready = step.timeline.ready[id];
  const double sent = std::max(step.submitted[id], wait.produced);
  if (!step.prefetch) {
    wait.startable = std::max(sent, wait.input.own_produced);
    wait.transfer_to = step.timeline.spans[id].start;
    wait.transfer_from = wait.transfer_to - step.transfer[id];
    return wait;
  }
  wait.startable = ready;
  wait.transfer_from = std::min(sent, ready);
  // The comparison keeps rounding out: a transfer that took until the job was ready ends at that very time.
  const double time = wait.input.from ? step.transfer[id] : 0;
  wait.transfer_to =
      time >= ready - wait.transfer_from && wait.input.from ? ready : wait.transfer_from + time;
  return wait;
}

}  // namespace starpipe::plan::detail
