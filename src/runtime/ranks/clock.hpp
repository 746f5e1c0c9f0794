// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

namespace starpipe::runtime {

/// Seconds of this machine's steady clock.
double clock_seconds();

/// Makes the sleeps of the calling thread end on time; Linux may otherwise add 50 microseconds to each.
void wake_on_time();

/// Waits until `clock_seconds()` is `time`: asleep at first, then awake for the last 200 microseconds, since
/// sleeps end late.
void wait_until(double time);

/// Collective. Seconds to add to this rank's clock to get rank 0's. Measured by the shortest of several round
/// trips, taking both ways as equally long. Ranks of one machine share the clock: for them the result differs
/// from 0 by less than a round trip.
double measure_clock_offset(MPI_Comm comm);

}  // namespace starpipe::runtime
