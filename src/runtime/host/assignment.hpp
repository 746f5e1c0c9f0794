// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/host/hardware.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/worker_map.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::runtime {

/// Which device runs which worker, so that workers that send each other much are near: the assignment with
/// the least `link_seconds`. Returns, by worker, an index into `devices`; each device carries one worker.
/// Worker w gets a device of the kind of device w, core or GPU, and device w itself unless another assignment
/// is better: the result is never worse than the order given.
///
/// Up to `exact_mapping` workers the result is optimal; beyond, it is improved from several starts within a
/// fixed number of tries. Deterministic.
std::vector<int> map_workers(std::span<const Device> devices, std::span<const plan::Traffic> traffic);

inline constexpr std::size_t exact_mapping = 9;

/// Collective, for `runtime.mapping: auto`. Gives each worker a slot of some rank, near to the workers that
/// it exchanges much with (`map_workers`). `devices`: by slot of this rank; their host and rank are set here.
WorkerMap map_to_ranks(const Mpi& mpi, std::vector<Device> devices, std::span<const plan::Traffic> traffic);

}  // namespace starpipe::runtime
