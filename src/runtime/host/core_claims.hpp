// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "runtime/host/topology.hpp"
#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

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

  /// Claims the PU with this number of the system, on behalf of its core. Another PU of the same core is
  /// another claim. Returns false when the PU is claimed already, by any process. Throws std::system_error
  /// when the system refuses a socket.
  bool claim(unsigned pu);
  /// Ends all claims of this object.
  void release();

 private:
  std::vector<int> sockets_;
};

/// Collective. Claims the cores of `share.worker_pus`. If another run has claimed a core of a rank, this rank
/// keeps no claim, and its `worker_pus` is cleared; other ranks keep theirs. Reason: two workers bound to one
/// core each run at half speed, but a worker that is not bound finds a free core. Rank 0 prints one line on
/// standard error for the lowest rank whose `worker_pus` was cleared.
CoreClaims claim_cores(const Mpi& mpi, CoreShare& share);

}  // namespace starpipe::runtime
