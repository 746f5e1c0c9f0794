// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <string>

#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

/// Returns the seconds of this machine's steady clock.
double clock_seconds();

/// Makes the sleeps of the calling thread end on time; Linux may otherwise add 50 microseconds to each. Does
/// nothing from the second call on.
void wake_on_time();

/// By how much waits of this process sleep for longer and are awake for shorter than where each thread has a
/// core: at least 1. Where many ranks and workers share few cores, a thread that waits awake, or wakes often,
/// delays the others by more than it gains.
inline std::atomic<int> patience = 1;

/// Returns the patience for so many workers and MPI threads on so many cores.
inline int patience_for(int threads, int cores) { return std::max(1, threads / (4 * std::max(1, cores))); }

/// Waits until `clock_seconds()` is `time`: asleep at first, then awake for the last 200 microseconds,
/// divided by `patience`, since sleeps end late.
void wait_until(double time);

/// Returns a text that is equal for processes with the same steady clock: processes of one boot of a host,
/// unless they are in containers with time namespaces of their own.
std::string clock_name();

/// Collective. Returns the seconds to add to this rank's clock to get rank 0's. `clock`: the name of this
/// rank's clock. A rank with rank 0's clock gets exactly 0: on a host in use, a round trip takes
/// milliseconds. For other ranks it is measured by the shortest of several round trips, with both ways taken
/// as equally long.
double measure_clock_offset(const Mpi& mpi, const std::string& clock = clock_name());

}  // namespace starpipe::runtime
