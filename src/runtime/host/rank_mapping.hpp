// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "runtime/host/device.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/host/mpi.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::runtime {

/// Collective, for `runtime.mapping: auto`. Gives each worker a slot of some rank, near to the workers that
/// it exchanges much with (`map_workers`). `devices`: by slot of this rank; their host and rank are set here.
WorkerMap map_to_ranks(const Mpi& mpi, std::vector<Device> devices, std::span<const plan::Traffic> traffic);

}  // namespace starpipe::runtime
