// SPDX-License-Identifier: Apache-2.0
// In the place of clock.cpp on SimGrid: all ranks have one clock.
#include <starpu.h>

#include "runtime/host/clock.hpp"

namespace starpipe::runtime {

double clock_seconds() { return starpu_timing_now() * 1e-6; }

void wake_on_time() {}  // simulated sleeps do

void wait_until(double time) {
  const double left = time - clock_seconds();
  if (left > 0) starpu_sleep(static_cast<float>(left));
}

std::string clock_name() { return "simulated"; }

double measure_clock_offset(const Mpi& /*mpi*/, const std::string& /*clock*/) { return 0; }

}  // namespace starpipe::runtime
