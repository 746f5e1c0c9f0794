// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/engine/meter.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/session/policy_choice.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::plan {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Received, count, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Transfers, activations, stashes, gradients, keys_values,
                                   keys_values_gradients, weights, weight_gradients, reloads)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobRun, job, worker, submitted, ready, start, end)
}  // namespace starpipe::plan

namespace starpipe::runtime {

/// The bytes that StarPU copied in a step between memory nodes, for one GPU. Plain data.
struct Copies {
  std::uint64_t from_gpus = 0;  ///< to this GPU from others of its node
  std::uint64_t from_host = 0;  ///< to this GPU from main memory
  std::uint64_t to_host = 0;    ///< from this GPU to main memory
};

/// A step on simulated GPUs.
struct SimulatedStep {
  double seconds = 0;
  std::vector<JobRecord> jobs = {};
  std::vector<WorkerRecord> workers = {};
  /// [worker]: bytes that StarPU had allocated on the GPU, in all steps
  std::vector<std::uint64_t> peak_memory = {};
  std::vector<Copies> copied = {};        ///< [worker]
  std::uint64_t bytes_between_ranks = 0;  ///< of all steps
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WorkerRecord, received, peak_stashes, peak_stash_bytes, last_sum)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Copies, from_gpus, from_host, to_host)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SimulatedStep, seconds, jobs, workers, peak_memory, copied,
                                   bytes_between_ranks)

/// Only in starpipe-simulated.so, which runs on SimGrid. Runs `steps` steps of the configuration, with this
/// rank's workers on its simulated GPUs. Jobs last as `runtime.emulate` says. Collective. Returns the last
/// step, a SimulatedStep, on rank 0, null on the others.
nlohmann::json run_simulated_rank(const Config& config, int steps);

/// Starts StarPU on SimGrid, with a simulated GPU for each worker of this rank. Collective, and once in a
/// process: MPI ends with it. `mpi` and `map` must outlive the session.
std::unique_ptr<Session> simulated_session(const Mpi& mpi, const WorkerMap& map, PolicyChoice policy);

}  // namespace starpipe::runtime
