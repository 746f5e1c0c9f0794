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

/// Chooses the device of each worker, so that workers that send each other much are near: minimises
/// `link_seconds`. Returns, by worker, an index into `devices`; each device carries one worker. Worker w gets
/// a device of the kind of device w, core or GPU, and device w itself unless another mapping is better: the
/// result is never worse than the order given. Deterministic. Up to `exact_mapping` workers the mapping is
/// optimal (branch and bound); beyond, exchanges improve it from several starts within a fixed number of
/// tries.
std::vector<int> map_workers(std::span<const Device> devices, std::span<const plan::Traffic> traffic);

inline constexpr std::size_t exact_mapping = 9;

/// Collective, for `runtime.mapping: auto`. Gives each worker a slot of some rank, near the workers with
/// which it exchanges much (`map_workers`). `devices`: by slot of this rank; their host and rank are set
/// here.
WorkerMap map_to_ranks(const Mpi& mpi, std::vector<Device> devices, std::span<const plan::Traffic> traffic);

}  // namespace starpipe::runtime
