// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "runtime/host/worker_map.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/session/policy_choice.hpp"
#include "runtime/session/session.hpp"

namespace starpipe::runtime {

/// Starts StarPU on SimGrid, with a simulated GPU for each worker of this rank. Collective, and once in a
/// process: MPI ends with it. `mpi` and `map` must outlive the session.
std::unique_ptr<Session> simulated_session(const Mpi& mpi, const WorkerMap& map, PolicyChoice policy);

}  // namespace starpipe::runtime
