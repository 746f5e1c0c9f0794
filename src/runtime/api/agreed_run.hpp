// SPDX-License-Identifier: Apache-2.0
// The run on which all ranks agree, made from a configuration.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/weights.hpp"
#include "runtime/api/host_memory.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/core_share.hpp"
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
  explicit RankRequest(const std::string& command) { add("command", command); }

  void add(const std::string& option, const std::string& value) { values_[option] = value; }
  /// A file that was not asked for adds nothing.
  void add(const std::string& option, const std::optional<std::filesystem::path>& file) {
    if (file) add(option, file->string());
  }
  /// The option of a flag that was not given adds nothing.
  void add_flag(const std::string& option, bool given) {
    if (given) add(option, std::string("true"));
  }

  /// Collective. Throws InputError on every rank when not all have the same command, options and
  /// configurations. The message names the first option or key that differs, and its values.
  void require_same(const Mpi& mpi, const std::vector<Config>& configs) const;

 private:
  nlohmann::ordered_json values_;
};

/// A run before it is known where its workers are.
struct PlannedRun {
  std::size_t number = 0;  ///< place of its configuration among those that are agreed on
  Config config;           ///< with the cuts and the placement of `partition`
  std::optional<PartitionChoice>
      partition;          ///< on every rank; other ranks than 0 know cuts and placement only
  Experiment experiment;  ///< each rank has built it from `config`
};

/// The run on which all ranks agree, and where each worker is.
struct AgreedRun : PlannedRun {
  const Mpi& mpi;
  model::StartValues start;  ///< empty with emulated jobs
  plan::Costs expected;  ///< costs of the prediction: those of `experiment` with the links of `runtime.links`
  WorkerMap map;
  CoreShare share;
  GpuShare gpus;
  std::vector<RankLocation> locations;  ///< [rank]; on rank 0 only
  std::vector<MainMemory> memory;       ///< [rank]: predicted; on rank 0 only, empty with emulated jobs
};

/// Returns the engine of `run`, whose weights start with `start`. `run` and `session` must outlive the
/// engine.
Engine make_engine(const Session& session, const AgreedRun& run, const model::StartValues& start);

/// Collective, after the last step. Throws RunFailure when the weights hold infinity or NaN, unless
/// `training.nonfinite` is `continue`: no pass has read the weights of the last update.
void require_finite_weights(const AgreedRun& run, const Engine& engine);

/// A configuration that cannot work, among others that can.
struct LeftOut {
  std::size_t config;   ///< its place among the configurations
  std::string problem;  ///< names the schedule
};

/// Runs of the same devices: one for each configuration that can work.
struct AgreedRuns {
  CoreClaims claims;
  std::vector<AgreedRun> runs;
  std::vector<LeftOut> left_out = {};  ///< ascending; empty if there is one configuration
};

/// Collective. Agrees on a run for each configuration, of which there is at least one; several differ in
/// `schedule` and the emulated times only, and have as many workers. Throws InputError on every rank if no
/// configuration can work, or if one differs between ranks. `parts`: of a single configuration. `mpi`
/// must outlive the result.
AgreedRuns agree_on_runs(const Mpi& mpi, std::vector<Config> configs, const TrainerParts& parts = {});

}  // namespace starpipe::runtime
