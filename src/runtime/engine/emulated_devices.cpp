// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/emulated_devices.hpp"

#include <algorithm>

#include <starpu.h>

#include "runtime/host/clock.hpp"

namespace starpipe::runtime {

EmulatedDevices::EmulatedDevices() : busy_until_(starpu_worker_get_count(), 0) {}

plan::Span EmulatedDevices::run(double ready, double duration) {
  thread_local const bool on_time = (wake_on_time(), true);
  static_cast<void>(on_time);
  double& busy_until = busy_until_[starpu_worker_get_id_check()];
  const double now = clock_seconds();
  const double start = std::max(busy_until, ready);
  wait_until(start + duration);
  busy_until = std::max(now, start + duration);
  return {start, busy_until};
}

}  // namespace starpipe::runtime
