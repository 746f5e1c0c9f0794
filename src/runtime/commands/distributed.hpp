// SPDX-License-Identifier: Apache-2.0
// The frame of every command that runs on ranks: agreement on the configuration, start and end of MPI.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine.hpp"
#include "runtime/ranks/rank_location.hpp"
#include "runtime/session/session.hpp"
#include "runtime/setup/gpu_checks.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/runtime/setup/experiment.hpp"
#include "starpipe/runtime/setup/partition_choice.hpp"

namespace starpipe::runtime {

/// Collective. Runs `setup` on every rank. If it throws InputError on any rank, all ranks throw the same
/// InputError.
template <class Setup>
auto agree(const Mpi& mpi, Setup setup) {
  std::string problem;
  std::optional<decltype(setup())> result;
  try {
    result.emplace(setup());
  } catch (const InputError& error) {
    problem = error.what();
  }
  problem = mpi.first_problem(problem);
  if (!problem.empty()) throw InputError(problem);
  return std::move(*result);
}

/// Runs `function`. If it throws, ends the whole job at once: other ranks would wait for this rank, and
/// destructors would wait for tasks and for other ranks.
void or_abort(const Mpi& mpi, const std::function<void()>& function);

/// A configuration, and the run that all ranks have built from it.
struct Assignment {
  const Mpi& mpi;
  Config config;                             ///< with the cuts and the placement of `partition`
  std::optional<PartitionChoice> partition;  ///< on rank 0, where it was chosen
  Experiment experiment;
  std::vector<std::vector<float>> parameters;  ///< [stage]: start values
  WorkerMap map;
  CoreShare share;
  GpuShare gpus;
  std::vector<RankLocation> locations;  ///< [rank]
};

/// The engine that runs `job`. `job` and `session` must outlive the engine.
Engine make_engine(const Session& session, const Assignment& job);

/// Collective. Starts MPI, agrees on the configuration, calls `work`, ends MPI. Returns the exit code: 0, or
/// 2 after one line on standard error if `configure` or `work` throws InputError; `work` must do so on every
/// rank or on none. Any other exception ends the whole job.
int run_on_ranks(const std::function<Config()>& configure,
                 const std::function<void(const Assignment&)>& work);

}  // namespace starpipe::runtime
