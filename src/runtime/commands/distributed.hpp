// SPDX-License-Identifier: Apache-2.0
// What every command that runs on ranks does around its work.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine.hpp"
#include "runtime/session/rank_location.hpp"
#include "runtime/session/session.hpp"
#include "runtime/setup/gpu_checks.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/runtime/setup/experiment.hpp"

namespace starpipe::runtime {

/// Collective. Runs `setup` on every rank; when any of them finds a mistake, all throw the same InputError.
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

/// Runs `function`; a failure ends the job, since the other ranks would wait for this one, and does so before
/// anything is destroyed, since destructors wait for tasks and for other ranks.
void or_abort(const Mpi& mpi, const std::function<void()>& function);

/// A configuration, and what all ranks have made of it.
struct Assignment {
  const Mpi& mpi;
  Config config;
  Experiment experiment;
  std::vector<std::vector<float>> parameters;  ///< start values, by stage
  WorkerMap map;
  CoreShare share;
  GpuShare gpus;
  std::vector<RankLocation> locations;  ///< by rank
};

/// The engine for it. `job` and `session` must outlive it.
Engine make_engine(const Session& session, const Assignment& job);

/// Collective. Starts MPI, agrees on the configuration, calls `work`, ends MPI. Returns the exit code: 0, or
/// 2 after one line on standard error when `configure` or `work` throws InputError (every rank's or none's
/// `work` does). Any other exception ends the whole job.
int run_on_ranks(const std::function<Config()>& configure,
                 const std::function<void(const Assignment&)>& work);

}  // namespace starpipe::runtime
