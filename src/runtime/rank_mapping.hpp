// SPDX-License-Identifier: Apache-2.0
// `runtime.mapping: auto` on the ranks of a run.
#pragma once

#include <span>
#include <vector>

#include "mapping.hpp"
#include "session.hpp"

namespace starpipe::runtime {

/// Collective. The workers on the places of the ranks, near to those that they exchange much with. `devices`:
/// of this rank's places (their host and rank are set here).
WorkerMap map_to_ranks(const Mpi& mpi, std::vector<Device> devices, std::span<const plan::Flow> flows);

}  // namespace starpipe::runtime
