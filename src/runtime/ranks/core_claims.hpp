// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runtime/hardware/topology.hpp"
#include "runtime/ranks/mpi.hpp"

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

  /// Claims one core, by a PU in the system's numbering. Returns false when another process has claimed it.
  bool claim(unsigned pu);
  /// Ends all claims of this object.
  void release();

 private:
  std::vector<int> sockets_;
};

/// Collective. Claims the cores of `share.worker_pus`. On a rank where another run has one of them, claims
/// nothing and clears `worker_pus`: two workers that are bound to one core would each run at half speed,
/// while unbound ones find a free core. Rank 0 prints one line on standard error for the lowest of these
/// ranks.
CoreClaims claim_cores(const Mpi& mpi, CoreShare& share);

}  // namespace starpipe::runtime
