// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

/// Returns the seconds of this machine's steady clock.
double clock_seconds();

/// Makes the sleeps of the calling thread end on time; Linux may otherwise add 50 microseconds to each. Does
/// nothing from the second call on.
void wake_on_time();

/// Waits until `clock_seconds()` is `time`: asleep at first, then awake for the last 200 microseconds, since
/// sleeps end late.
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
