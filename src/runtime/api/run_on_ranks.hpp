// SPDX-License-Identifier: Apache-2.0
// The frame of every command that runs on ranks: start of MPI, agreement on the experiment, end of MPI.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/engine.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/session/session.hpp"
#include "runtime/setup/experiment.hpp"
#include "runtime/setup/partition_choice.hpp"
#include "runtime/setup/run_checks.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// A command and its options, with the names that the command line has for them.
class RankRequest {
 public:
  explicit RankRequest(std::string command) { values_.emplace_back("command", std::move(command)); }

  void add(std::string option, std::string value) {
    values_.emplace_back(std::move(option), std::move(value));
  }
  /// A file that was not asked for adds nothing.
  void add(std::string option, const std::optional<std::filesystem::path>& file) {
    if (file) add(std::move(option), file->string());
  }
  /// The option of a flag that was not given adds nothing.
  void add_flag(std::string option, bool given) {
    if (given) add(std::move(option), std::string("true"));
  }

  /// Collective. Throws InputError on every rank when not all have the same command, options and
  /// configurations. The message names the first option or key that differs, and its values.
  void require_same(const Mpi& mpi, const std::vector<Config>& configs) const;

 private:
  std::vector<std::pair<std::string, std::string>> values_;
};

/// The run on which all ranks agree: the configuration, the Experiment that each rank has built from it (a
/// PlannedRun with its data), start values, and where each worker is.
struct AgreedRun {
  const Mpi& mpi;
  Config config;                             ///< with the cuts and the placement of `partition`
  std::optional<PartitionChoice> partition;  ///< the same on every rank
  Experiment experiment;
  std::vector<std::vector<float>> parameters;  ///< [stage]: start values
  WorkerMap map;
  CoreShare share;
  GpuShare gpus;
  std::vector<RankLocation> locations;  ///< [rank]
};

/// The optimizer of a run, with the steps of its learning-rate schedule.
model::OptimizerConfig optimizer_of(const Config& config);

/// The engine of `run`. `run` and `session` must outlive the engine.
Engine make_engine(const Session& session, const AgreedRun& run);

/// Collective, after the last step. Throws RunFailure when the weights hold infinity or NaN, unless
/// `training.nonfinite` is `continue`: no pass has read the weights of the last update.
void require_finite_weights(const AgreedRun& run, const Engine& engine);

/// Collective. Starts MPI, agrees on a run for each configuration, calls `work`, ends MPI. `configure`
/// returns at least one configuration; several differ in `schedule` and the emulated times only, and have as
/// many workers. A configuration that cannot work is refused before `work` is called, and so is one that
/// differs between ranks, or a `request` that does. Returns the exit code:
/// 0, or after one line on standard error 2 if `configure` or `work` throws InputError, and 1 if `work`
/// throws RunFailure; `work` must do so on every rank or on none. Any other exception ends the run on all
/// ranks.
int run_on_ranks(const RankRequest& request, const std::function<std::vector<Config>()>& configure,
                 const std::function<void(const std::vector<AgreedRun>&)>& work);

/// Prints on rank 0 where each rank of MPI_COMM_WORLD would run in a training run of the configuration: its
/// machine, its share of the cores, who bound it to them, and its workers. As text or JSON. Runs no step,
/// and does not start StarPU. Collective; `configure` and the result are as in `train`.
int show_ranks(const std::function<Config()>& configure, bool json);

}  // namespace starpipe::runtime
