// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace starpipe::runtime {

/// How StarPU-MPI's thread spends the time between polls that find nothing. It polls as long as it expects a
/// message. Where workers share its core, it would take half of the core, and whole time slices from the
/// threads of other ranks.
enum class Polling : std::uint8_t {
  eager,     ///< it polls again at once: it has a core of its own
  napping,   ///< it sleeps a moment now and then
  yielding,  ///< it also yields its core after each poll. Not for StarPU's policies: their idle workers spin
             ///< without yielding, and would keep the core for a time slice
};

/// Sets the way of polling for this process. Thread-safe.
void poll_mpi(Polling polling);

}  // namespace starpipe::runtime
