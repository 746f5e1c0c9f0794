// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace starpipe::runtime {

/// The devices that `runtime.emulate` puts in the place of kernels: one a StarPU worker, each a queue that
/// runs one job after the other, as a stream of an accelerator does.
///
/// A job starts on its device when it has been handed to the scheduler and the device has ended the one
/// before, and lasts as long as it is told to. The thread of the worker waits for that end. So what StarPU
/// and the policy need to see an end, to release what depends on it and to push it delays jobs as it would
/// on a real device. What the operating system needs to wake a thread that sleeps in place of a
/// driver that polls on a core of its own does not.
class EmulatedDevices {
 public:
  struct Span {
    double start;  ///< seconds of `clock_seconds`
    double end;
  };

  /// Turns StarPU's task profiling on, which tells when a task was pushed, and off again at the end.
  EmulatedDevices();
  ~EmulatedDevices();
  EmulatedDevices(const EmulatedDevices&) = delete;
  EmulatedDevices& operator=(const EmulatedDevices&) = delete;

  /// Runs the calling worker's current task for `duration` seconds. A thread that comes to a job later than
  /// the job's end has left its device idle: that job ends now.
  Span run(double duration);

 private:
  std::vector<double> busy_until_;  // by StarPU worker; its own thread's
};

}  // namespace starpipe::runtime
