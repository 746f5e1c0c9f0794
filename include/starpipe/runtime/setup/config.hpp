// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/partition/partition.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::runtime {

/// `training:` of the configuration.
struct TrainingConfig {
  std::optional<int> microbatches = 8;  ///< B, per step; those of `schedule.file` when absent
  int microbatch_size = 1;              ///< sequences (gpt) or samples (mlp)
  int steps = 10;
  std::uint64_t seed = 1;
  model::OptimizerConfig optimizer;
};

/// `schedule:` of the configuration.
struct ScheduleConfig {
  std::vector<std::string> plugins;  ///< shared objects that add schedules (starpipe/plan/plugin.hpp)
  std::string name = "1f1b";
  /// An order from a file, CSV or JSON (plan::schedule_from_text), instead of a named schedule.
  std::optional<std::filesystem::path> file;
  std::optional<int> workers = 1;              ///< those of `file` when absent
  std::optional<int> stages;                   ///< what the schedule has a worker, or the file, when absent
  std::optional<int> groups;                   ///< of lpp and fslpp
  std::vector<int> placement;                  ///< worker of each stage
  std::vector<int> cuts;                       ///< first unit of each stage but the first
  bool partition = false;                      ///< `auto`: cuts, and placement, by times (choose_partition)
  std::string profile_file;                    ///< of `profile`; empty: `choose_partition` measures
  plan::Profile profile;                       ///< of each unit
  std::optional<plan::Partition> chosen;       ///< by `choose_partition`
  std::optional<plan::Discipline> discipline;  ///< the schedule's own when absent
  /// Stashes a worker may hold, a number that the bounded discipline keeps to as it runs; alone it means
  /// bounded. Bytes are RuntimeConfig's.
  std::optional<int> memory_limit;
  /// Whether a greedy or bounded schedule picks at run time. Otherwise `simulate` picks once, and each run
  /// follows.
  bool dynamic = false;
  /// F keeps the stage's inputs only, B computes it again (plan::Schedule::recompute).
  bool recompute = false;
};

/// `runtime.emulate:` of the configuration: timed waits instead of kernels, so that any number of logical
/// workers runs on a small machine. Seconds; one value a stage, or one for all. BW lasts B + W; with
/// recomputation both last F more.
struct EmulationConfig {
  std::vector<double> F;
  std::vector<double> B;
  std::vector<double> W;
  double comm = 0;  ///< of each transfer between workers
  /// Whether transfers overlap compute (see plan::Costs).
  bool prefetch = true;
};

/// Which worker gets which place of the ranks: in order, or neighbours of the schedule on near devices.
enum class MappingKind : std::uint8_t { linear, automatic };

/// `runtime:` of the configuration.
struct RuntimeConfig {
  std::string policy = "starpipe";  ///< or a policy of StarPU's, or one that STARPU_SCHED_LIB has
  /// What the workers are, "cpu" cores or "cuda" GPUs: one word for all of them, or one for each.
  std::vector<std::string> device = {"cpu"};
  /// Most logical workers that share a CPU core. More than one emulates a pipeline on a small machine;
  /// times are then not a pipeline's.
  int workers_per_core = 4;
  /// Seconds without a finished job after which the run is ended: a rank is lost or stuck.
  double timeout = 300;
  /// Most tasks of a rank that are submitted and not finished, where the order of jobs is fixed: what is
  /// submitted later cannot come before then. Other runs submit the whole step, since what a policy chooses
  /// from is the choice.
  int window = 10'000;
  MappingKind mapping = MappingKind::linear;
  /// Bytes that a worker may need (memory.hpp); one that would need more is refused before the run.
  std::optional<std::uint64_t> memory_limit = std::nullopt;
  std::optional<EmulationConfig> emulate = std::nullopt;

  [[nodiscard]] const std::string& device_of(int worker) const {
    return device[device.size() == 1 ? 0 : static_cast<std::size_t>(worker)];
  }
  [[nodiscard]] bool on_gpu(int worker) const { return device_of(worker) == "cuda"; }
  [[nodiscard]] std::vector<bool> on_gpu_of(int workers) const {
    std::vector<bool> on_gpus;
    for (int w = 0; w < workers; ++w) on_gpus.push_back(on_gpu(w));
    return on_gpus;
  }
  /// Whether some workers, or all of them, are GPUs.
  [[nodiscard]] bool uses_gpus() const { return std::ranges::find(device, "cuda") != device.end(); }
  [[nodiscard]] bool is_mixed() const {
    return std::ranges::find(device, "cpu") != device.end() && uses_gpus();
  }
};

/// A whole configuration file.
struct Config {
  model::ModelConfig model;
  model::DataConfig data;
  TrainingConfig training;
  ScheduleConfig schedule;
  RuntimeConfig runtime;
  std::string source;  ///< the file, for messages
  std::string text;    ///< as YAML, overrides applied, for the report
};

}  // namespace starpipe::runtime
