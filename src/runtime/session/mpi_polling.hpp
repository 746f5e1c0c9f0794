// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace starpipe::runtime {

/// What StarPU-MPI's thread does between polls that find nothing: it polls as long as it expects a message,
/// and where ranks share their cores with workers it would take half of a worker's core, and whole time
/// slices from another rank's thread.
enum class Polling : std::uint8_t {
  eager,     ///< nothing: it has a core of its own
  napping,   ///< it sleeps a moment now and then
  yielding,  ///< it also yields its core after each; where idle workers spin without doing so (StarPU's
             ///< policies) they would keep it for a time slice
};
void poll_mpi(Polling polling);

}  // namespace starpipe::runtime
