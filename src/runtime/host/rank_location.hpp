// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/host/device.hpp"
#include "runtime/host/topology.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

/// Where a rank runs, for the report.
struct RankLocation {
  std::string machine;
  std::string binding;               ///< PUs
  std::string bound_by;              ///< "launcher", "starpipe", or "" when the rank may use the whole host
  int cores = 1;                     ///< within the binding
  int workers = 1;                   ///< logical
  bool bound = false;                ///< whether each worker has a core to itself
  std::string mpi_thread;            ///< where MPI's thread runs: words of `mpi_thread_place`
  std::vector<int> logical_workers;  ///< by slot
  std::vector<std::string> devices;  ///< by slot
};

/// Where MPI's thread of a rank with this share runs, in words: "on PUs 2-3" without workers, "where a worker
/// waits", "not bound", or "as STARPU_MPI_THREAD_CPUID says" when the user binds it. One rank alone sends
/// nothing. `ranks`: all of the run.
std::string mpi_thread_place(const Topology& host, const CoreShare& share, int ranks);

/// RankLocation::bound_by of a rank that had `binding` on `host` before it took `share`.
std::string bound_by(const Topology& host, const std::string& binding, const CoreShare& share);

/// Collective. Where each rank runs, [rank]. `devices`: of this rank, [slot].
std::vector<RankLocation> gather_locations(const Mpi& mpi, const WorkerMap& map, const CoreShare& share,
                                           std::span<const Device> devices);

}  // namespace starpipe::runtime
