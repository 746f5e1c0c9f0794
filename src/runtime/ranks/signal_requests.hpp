// SPDX-License-Identifier: Apache-2.0
// Signals that ask a run for a checkpoint, where they would else end it.
#pragma once

#include <csignal>
#include <cstdint>

namespace starpipe::runtime {

/// What signals ask of a run.
enum class SignalRequest : std::uint8_t { none = 0, checkpoint = 1, stop = 2, both = 3 };

/// While this lives, two signals no longer end this process: the given one asks for a checkpoint, SIGTERM for
/// a checkpoint and the end of the run. A launcher and a batch system may send a signal to several processes
/// of a run, some of which hand it on, so signals of one kind within two seconds count as one. A SIGTERM that
/// comes later than two seconds after the first one has the effect that it had before. After a SIGTERM all
/// this holds until the process has ended, since the same signal may come again while objects are destroyed.
/// Signals that the process ignored at its start stay ignored. One a process; not thread-safe, but the
/// signals may come on any thread.
class SignalRequests {
 public:
  explicit SignalRequests(int checkpoint_signal);
  ~SignalRequests();
  SignalRequests(const SignalRequests&) = delete;
  SignalRequests& operator=(const SignalRequests&) = delete;

  /// What was asked since the last call.
  [[nodiscard]] static SignalRequest take();

 private:
  int checkpoint_signal_;
  struct sigaction checkpoint_before_ {};
};

/// For watch_over_rank(), before it makes a child: lets the parent know the child's SignalRequests.
void share_signal_requests();
/// In the parent: whether the signal asks the child for something now, and does not end it.
bool is_request(int signal);

}  // namespace starpipe::runtime
