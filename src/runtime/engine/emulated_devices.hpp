// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::runtime {

/// The devices that `runtime.emulate` uses instead of kernels, one for each StarPU worker. A device is a
/// queue that runs one job after the other, like a stream of an accelerator.
///
/// A job starts on its device when it is ready and the device has ended the job before, and lasts for the
/// given time. The worker's thread waits for its end. The time that StarPU needs after an end, to find that
/// the next jobs are ready, delays these jobs as on a real device. The time that the operating system needs
/// to wake the waiting thread does not: a real driver would poll on a core of its own.
class EmulatedDevices {
 public:
  EmulatedDevices();

  /// Runs the calling worker's current task, which became ready at `ready`, for `duration` seconds. If the
  /// job's end is past when the calling thread gets here, the job ends now. Times are in seconds of
  /// `clock_seconds`.
  plan::Span run(double ready, double duration);

 private:
  std::vector<double> busy_until_;  // by StarPU worker; only its own thread uses its element
};

}  // namespace starpipe::runtime
