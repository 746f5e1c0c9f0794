// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

namespace starpipe::runtime {

/// Seconds of this machine's steady clock.
double clock_seconds();

/// Lets the calling thread's sleeps end on time; Linux may otherwise add 50 microseconds to each.
void wake_on_time();

/// Waits until `clock_seconds()` is `time`: asleep, and the last moment awake, since sleeps end late.
void wait_until(double time);

/// Collective. Seconds to add to this rank's clock to get rank 0's: of several round trips the one with the
/// shortest, its two ways taken as equal. Ranks of one machine share the clock; theirs is
/// within a round trip of 0.
double measure_clock_offset(MPI_Comm comm);

}  // namespace starpipe::runtime
