// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <nlohmann/json_fwd.hpp>

#include "runtime/host/mpi.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/session/policy_choice.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Only in starpipe-simulated.so, which runs on SimGrid. Runs `steps` steps of the configuration, with this
/// rank's workers on its simulated GPUs. Jobs last as `runtime.emulate` says. Collective. Returns the last
/// step's jobs and workers on rank 0, null on the others.
nlohmann::json run_simulated_rank(const Config& config, int steps);

/// Starts StarPU on SimGrid, with a simulated GPU for each worker of this rank. Collective, and once in a
/// process: MPI ends with it. `mpi` and `map` must outlive the session.
std::unique_ptr<Session> simulated_session(const Mpi& mpi, const WorkerMap& map, PolicyChoice policy);

}  // namespace starpipe::runtime
