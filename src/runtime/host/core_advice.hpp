// SPDX-License-Identifier: Apache-2.0
// What a user can do when the cores of a run slow its workers.
#pragma once

#include <string>

#include "runtime/host/topology.hpp"

namespace starpipe::runtime {

/// A rank and its cores, for `core_advice`.
struct CoreUse {
  const Topology& host;
  const CoreShare& share;  ///< of the rank
  std::string machine;     ///< name of the host
  std::string launched;    ///< the PUs that the launcher gave the rank
  int rank = 0;
  int ranks = 1;      ///< all of the run
  int computing = 0;  ///< workers on cores of the rank and its neighbours, those on GPUs left out
};

/// One line for the user, or "" when there is nothing to mend. The first of these that is true:
/// - Fewer cores than workers. The line says whether the launcher's binding is the reason.
/// - The user binds MPI's thread to the core of a worker.
/// - The rank has no core without a worker, so MPI's thread shares one.
/// Users who bind the workers themselves get no advice: where these run is not known here.
std::string core_advice(const CoreUse& use);

}  // namespace starpipe::runtime
