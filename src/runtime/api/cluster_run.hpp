// SPDX-License-Identifier: Apache-2.0
// A run on simulated GPUs, compared with its prediction.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan/explain/compared_run.hpp"
#include "runtime/setup/experiment.hpp"
#include "runtime/simulation/cluster.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// A worker in the last step of the run.
struct SimulatedWorker {
  plan::Transfers received;
  int peak_stashes = 0;
  std::uint64_t peak_stash_bytes = 0;
  std::uint64_t peak_memory = 0;  ///< bytes that StarPU had allocated on the GPU, in all steps
  std::uint64_t memory_need = 0;  ///< the bytes predicted
  // Bytes that StarPU copied, which it counts itself:
  std::uint64_t from_gpus = 0;  ///< to this GPU from others of its node
  std::uint64_t from_host = 0;  ///< to this GPU from main memory
  std::uint64_t to_host = 0;    ///< from this GPU to main memory
};

struct ClusterRun {
  int nodes = 1;
  int ranks = 1;
  plan::ComparedRun compared;                       ///< one step, after those that warm up
  std::vector<SimulatedWorker> workers = {};        ///< by worker
  std::uint64_t bytes_between_ranks = 0;            ///< of all steps
  std::uint64_t predicted_bytes_between_ranks = 0;  ///< of all steps
};

/// Throws InputError, naming the cluster's file and gpu_memory, when a worker needs more memory than a GPU
/// has, or when a GPU has less than StarPU takes at a time.
void check_gpu_memory(const Config& config, const Experiment& experiment, const Cluster& cluster,
                      const plan::Costs& costs);

/// `result`: of `run_simulated_rank`, of `steps` steps. Throws std::runtime_error when it is none.
ClusterRun read_cluster_run(const Config& config, const Experiment& experiment, const Cluster& cluster,
                            const plan::Costs& costs, const nlohmann::json& result, int steps);

/// The figures of the run, and what `explain` reads.
nlohmann::ordered_json cluster_report(const ClusterRun& run);

}  // namespace starpipe::runtime
