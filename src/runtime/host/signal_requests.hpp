// SPDX-License-Identifier: Apache-2.0
// Signals that ask a run for a checkpoint, where they would else end it.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <new>
#include <system_error>

#include <sys/mman.h>

#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

/// The requests of signals to a run.
enum class SignalRequest : std::uint8_t { none = 0, checkpoint = 1, stop = 2, both = 3 };

/// Collective, once in a process. From now on, until the process has ended, two signals no longer end it:
/// `checkpoint_signal` asks for a checkpoint, SIGTERM for a checkpoint and the end of the run. A launcher and
/// a batch system may send a signal to several processes of a run, some of which hand it on, so signals of
/// one kind within two seconds count as one. A SIGTERM that comes later than two seconds after the first one
/// of this process has the effect that it had before. Signals that the process ignored at its start stay
/// ignored. The signals may come on any thread.
///
/// The signals stay taken over because they reach the ranks at different times: when one rank's SIGTERM has
/// stopped the run, another rank's may still be on its way.
///
/// A signal to the whole run may come while only some ranks have called this function. Then it ends the
/// other ranks. The ranks that have called it wait for the others here, and the signal ends them as well.
void accept_signal_requests(const Mpi& mpi, int checkpoint_signal);

/// Returns the requests to this process since the last call.
SignalRequest take_signal_requests();

/// Returns a value of zero in memory that this process shares with the children that it will make. Throws
/// std::system_error if there is no memory.
template <class Value>
std::atomic<Value>* shared_with_child() {
  static_assert(std::atomic<Value>::is_always_lock_free);
  void* const memory =
      mmap(nullptr, sizeof(std::atomic<Value>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  return new (memory) std::atomic<Value>(Value());
}

/// For watch_over_rank(), before it makes a child: lets the parent know which signals are requests.
void share_signal_requests();
/// In the parent: true if the signal asks the child for something now, and does not end it.
bool is_request(int signal);

}  // namespace starpipe::runtime
