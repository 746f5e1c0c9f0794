// SPDX-License-Identifier: Apache-2.0
// A run on simulated GPUs, compared with its prediction.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan/explain/compared_run.hpp"
#include "runtime/api/simulated_rank.hpp"
#include "runtime/setup/experiment.hpp"
#include "runtime/simulation/cluster.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

struct ClusterRun {
  int nodes = 1;
  int ranks = 1;
  plan::ComparedRun compared;                       ///< one step, after those that warm up
  SimulatedStep simulated;                          ///< the same step, without its jobs
  std::vector<std::uint64_t> memory_need = {};      ///< [worker]: the bytes predicted
  std::uint64_t predicted_bytes_between_ranks = 0;  ///< of all steps
};

/// Throws InputError, naming the cluster's file and gpu_memory, when a worker needs more memory than a GPU
/// has, or when a GPU has less than StarPU takes at a time.
void check_gpu_memory(const Config& config, const Experiment& experiment, const Cluster& cluster,
                      const plan::Costs& costs);

/// `result`: of `run_simulated_rank`, of `steps` steps. Throws nlohmann::json::exception when it is none.
ClusterRun read_cluster_run(const Config& config, const Experiment& experiment, const Cluster& cluster,
                            const plan::Costs& costs, const nlohmann::json& result, int steps);

/// Returns the figures of the run, and what `explain` reads.
nlohmann::ordered_json cluster_report(const ClusterRun& run);

}  // namespace starpipe::runtime
