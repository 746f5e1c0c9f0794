// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/host/hardware.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/topology.hpp"
#include "runtime/host/worker_map.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// True if the user decides the cores of StarPU's workers: by STARPU_WORKERS_NOBIND, _CPUID or _COREID.
bool user_binds_workers();

/// Returns the variable by which the user binds MPI's thread, STARPU_MPI_THREAD_CPUID or
/// STARPU_MPI_THREAD_COREID; nullopt if neither is set.
std::optional<std::string_view> user_binds_mpi_thread();

/// Returns the number of workers of a rank that `runtime.device` puts on cores.
int workers_on_cores(const WorkerMap& map, const RuntimeConfig& config, int rank);

/// Collective. Returns this rank's share of the cores of its host (Topology::share), even if the cores cannot
/// carry the workers. The share names no cores of workers (`worker_pus`) if `user_binds_workers()`.
CoreShare divide_host(const Mpi& mpi, const WorkerMap& map);

/// Collective, before StarPU starts. Returns the same share. Throws InputError on every rank if the cores,
/// the CPU quota or StarPU's limits of some rank cannot carry its workers. Rank 0 says the `core_advice` of
/// the lowest rank that has one, and the `product_advice` likewise.
CoreShare share_cores(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config);

// Advice to the user if workers are slower than they need be, because of their cores.

/// A rank and its cores, for `core_advice`.
struct CoreUse {
  const Topology& host;
  const CoreShare& share;  ///< of the rank
  std::string machine;     ///< name of the host
  std::string launched;    ///< the PUs that the launcher gave the rank
  int rank = 0;
  int ranks = 1;          ///< all of the run
  int computing = 0;      ///< workers of the rank and its neighbours, without workers on GPUs
  CpuQuota quota = {};    ///< of the rank's control group
  int sharing_quota = 0;  ///< workers of all ranks in this group, without workers on GPUs
};

/// Returns one line of advice for the user, on the first problem of this list that the rank has, or "":
/// - A CPU quota of fewer cores than workers that share it.
/// - Fewer cores than workers. The line says if the launcher's binding is the reason.
/// - Of several ranks: the user binds MPI's thread to the core of a worker.
/// - Of several ranks: no core is without a worker, so MPI's thread shares one.
/// Of these only the first counts if the user binds the workers: their places are not known here.
std::string core_advice(const CoreUse& use);

/// The cores to which this process binds workers, claimed against other runs of starpipe on the host. A claim
/// is a socket in the system's abstract namespace: it ends with the process, however that ends, and leaves no
/// file. Processes in different network namespaces (some containers) do not see each other's claims.
class CoreClaims {
 public:
  /// Claims no core.
  CoreClaims() = default;
  ~CoreClaims();
  CoreClaims(CoreClaims&& other) noexcept : sockets_(std::move(other.sockets_)) { other.sockets_.clear(); }
  CoreClaims& operator=(CoreClaims&&) = delete;

  /// Claims the PU with this number of the operating system; callers claim one PU for each core. Returns
  /// false when the PU is claimed already, by any process, this one included. Throws std::system_error
  /// when the system refuses a socket.
  bool claim(unsigned pu);
  /// Ends all claims of this object.
  void release();

 private:
  std::vector<int> sockets_;
};

/// Collective. Claims the cores of `share.worker_pus`. If another run has claimed a core of a rank, this rank
/// keeps no claim, and its `worker_pus` is cleared; other ranks keep theirs. Reason: two workers bound to one
/// core each run at half speed, but a worker that is not bound finds a free core. Rank 0 says one line for
/// the lowest rank whose `worker_pus` was cleared.
CoreClaims claim_cores(const Mpi& mpi, CoreShare& share);

}  // namespace starpipe::runtime
