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

/// Sets the way of polling for this process. Thread-safe. It has an effect in programs that call the
/// functions below, as starpipe does (cli/mpi_calls.cpp); in others StarPU-MPI polls eagerly.
void poll_mpi(Polling polling);

/// Call it after polling a request. `done`: whether the request was complete. Waits as the chosen way of
/// polling requires. StarPU-MPI's thread calls it, and so does the thread in `Mpi::barrier`, which sleeps
/// between polls anyway.
void note_poll(bool done);

/// The calling thread starts a transfer.
void note_transfer();

}  // namespace starpipe::runtime
