// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/emulated_devices.hpp"

#include <algorithm>

#include <starpu.h>
#include <starpu_profiling.h>

#include "runtime/ranks/clock.hpp"

namespace starpipe::runtime {
namespace {

// When the current task was pushed, on our clock. StarPU has a clock of its own.
double push_time(double now) {
  starpu_profiling_task_info* info = starpu_task_get_current()->profiling_info;
  if (info == nullptr) return now;  // submitted before profiling was on
  const double ago = (starpu_timing_now() - starpu_timing_timespec_to_us(&info->push_start_time)) * 1e-6;
  return now - std::max(0.0, ago);
}

}  // namespace

EmulatedDevices::EmulatedDevices() : busy_until_(starpu_worker_get_count(), 0) {
  starpu_profiling_status_set(STARPU_PROFILING_ENABLE);
}

EmulatedDevices::~EmulatedDevices() { starpu_profiling_status_set(STARPU_PROFILING_DISABLE); }

plan::Span EmulatedDevices::run(double duration) {
  thread_local const bool on_time = (wake_on_time(), true);
  static_cast<void>(on_time);
  double& busy_until = busy_until_[starpu_worker_get_id_check()];
  const double now = clock_seconds();
  const double start = std::max(busy_until, push_time(now));
  wait_until(start + duration);
  busy_until = std::max(now, start + duration);
  return {start, busy_until};
}

}  // namespace starpipe::runtime
