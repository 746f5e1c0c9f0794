// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "runtime/host/topology.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/host/mpi.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Whether the user binds StarPU's workers, by STARPU_WORKERS_CPUID or a variable like it.
bool user_binds_workers();

/// The variable by which the user binds MPI's thread, STARPU_MPI_THREAD_CPUID or STARPU_MPI_THREAD_COREID.
std::optional<std::string_view> user_binds_mpi_thread();

/// Collective. This rank's share of the cores of its host (Topology::share), whether or not the cores can
/// carry the workers. Workers have no cores of their own when the user binds them by StarPU's variables.
CoreShare divide_host(const Mpi& mpi, const WorkerMap& map);

/// Collective, before StarPU starts. The same. Throws InputError on every rank when the cores of some host
/// cannot carry their logical workers. Rank 0 prints the `core_advice` of the lowest rank that has one.
CoreShare share_cores(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config);

}  // namespace starpipe::runtime
