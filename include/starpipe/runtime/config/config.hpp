// SPDX-License-Identifier: Apache-2.0
// What a user asks for. config_keys.hpp describes each key; members have the keys' names unless they say
// otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/search/unit_costs.hpp"
#include "starpipe/plan/simulate/links.hpp"

namespace starpipe::runtime {

/// What a run does after a step in which a pass computed infinity or NaN: it ends, it leaves the weights and
/// the optimizer as they were before the step, or it continues.
enum class NonFinitePolicy : std::uint8_t { stop, skip, proceed };

/// The words of `TrainingConfig::nonfinite`, in the order of the enum.
inline constexpr std::array<std::string_view, 3> nonfinite_words = {"stop", "skip", "continue"};

/// `training:` of the configuration. Required keys have initial values here too, for programs that fill a
/// Config themselves.
struct TrainingConfig {
  std::optional<int> microbatches = 8;
  int microbatch_size = 1;
  int steps = 10;
  std::uint64_t seed = 1;
  model::OptimizerConfig optimizer;
  NonFinitePolicy nonfinite = NonFinitePolicy::stop;
};

/// The words of `CheckpointConfig::on_signal`.
inline constexpr std::array<std::string_view, 5> checkpoint_signals = {"USR1", "USR2", "HUP", "XCPU", "none"};

/// `checkpoint:` of the configuration.
struct CheckpointConfig {
  std::filesystem::path folder = {};  ///< empty: no checkpoints
  int every = 100;                    ///< steps
  int keep = 3;                       ///< checkpoints
  std::string on_signal = "USR1";     ///< one of checkpoint_signals

  [[nodiscard]] bool enabled() const { return !folder.empty(); }
};

/// `evaluate:` of the configuration.
struct EvaluateConfig {
  std::optional<int> every;         ///< steps; unset: only before the first step and after the last
  std::optional<int> microbatches;  ///< unset: as many as a step has
  bool alone = false;               ///< the run evaluates and does not train; no key, the command says so
};

/// `schedule:` of the configuration. Required keys have initial values here too.
struct ScheduleConfig {
  std::vector<std::string> plugins;  ///< `plugin`
  std::string name = "1f1b";
  std::optional<std::filesystem::path> file;  ///< when it is given, `name` has no effect
  std::optional<int> workers = 1;
  std::optional<int> stages;
  std::optional<int> tensor;  ///< unset: as many workers as shards, see Config::workers_each
  std::optional<int> groups;
  int slices = 1;  ///< of each sequence
  model::SliceSizes slice_sizes = model::SliceSizes::tokens;
  std::vector<int> slice_tokens;  ///< `slice_sizes` as a list
  std::map<std::string, int> options;
  std::vector<int> placement;
  std::vector<int> cuts;
  bool partition = false;    ///< `auto`: choose_partition finds cuts and placement
  std::string profile_file;  ///< `profile`
  std::optional<plan::Discipline> discipline;
  std::vector<int>
      memory_limits;  ///< in stashes, one or one per worker; RuntimeConfig::memory_limits are in bytes
  bool dynamic = false;
  std::vector<plan::Home> homes;  ///< one for all stages, or one for each; empty: as the schedule has them
  std::string home_way = {};      ///< `home: NAME` of plan::find_home_way; `homes` is empty then
  /// `vocabulary.ahead`, in micro-batches. The other keys of `vocabulary` are in model::ModelConfig.
  int vocabulary_ahead = 1;
};

/// `runtime.emulate:` of the configuration: timed waits instead of kernels, so that any number of logical
/// workers runs on a small machine. Times are in seconds. BW lasts B + W, and R as long as F.
struct EmulationConfig {
  std::vector<double> F;
  std::vector<double> B;
  std::vector<double> W;
  bool per_share = false;  ///< the times are of 1/W of the model, not of a stage
  double comm = 0;
  std::string links_file = {};  ///< `links`; when it is given, `comm` has no effect
  plan::Links links = {};       ///< its content
  bool prefetch = true;
  std::optional<double> copy = {};          ///< of a stash to its home, and back
  std::optional<double> peer_copy = {};     ///< of a stash to another worker, and back, in place of `copy`
  std::optional<plan::HomeLink> host = {};  ///< `host_link` of `links`, or of simulated GPUs
  std::optional<plan::HomeLink> disk = {};  ///< `disk_link` of `links`; `copy` goes before both
  std::optional<double> overlap = {};       ///< factor of plan::Overlap
};

/// How workers are mapped to the ranks' devices: in order, or workers that exchange much on near devices.
enum class MappingKind : std::uint8_t { linear, automatic };

/// The words of `RuntimeConfig::mapping`, in the order of the enum.
inline constexpr std::array<std::string_view, 2> mapping_words = {"linear", "auto"};

/// The words of `RuntimeConfig::device`: a core, and a GPU.
inline constexpr std::string_view cpu_device = "cpu";
inline constexpr std::string_view cuda_device = "cuda";
inline constexpr std::array device_kinds = {cpu_device, cuda_device};

/// The words of `RuntimeConfig::instructions`. `native`: all instructions of the processor. Each other word:
/// at most the instructions of this name.
inline constexpr std::string_view native_instructions = "native";
inline constexpr std::array instruction_words = {native_instructions, std::string_view("avx2"),
                                                 std::string_view("avx512"), std::string_view("avx512_bf16"),
                                                 std::string_view("amx")};

/// `runtime:` of the configuration, but for `precision`, which is in model::ModelConfig.
struct RuntimeConfig {
  std::string policy = "starpipe";
  std::vector<std::string> device = {std::string(cpu_device)};  ///< one word for all workers, or one for each
  int workers_per_core = 4;
  std::string instructions{native_instructions};  ///< of matrix products on cores
  double timeout = 300;                           ///< seconds
  int window = 10'000;  ///< largest number of submitted tasks; bounds StarPU's memory for tasks
  MappingKind mapping = MappingKind::linear;
  std::vector<std::uint64_t> memory_limits = {};  ///< bytes, one for all workers, or one for each
  std::string links_file = {};  ///< `links`: of the network between the ranks; the prediction counts with it
  plan::Links links = {};       ///< its content
  std::string stash_folder = {};  ///< on the disk to which stashes are copied
  std::optional<EmulationConfig> emulate = std::nullopt;

  /// Returns the bytes that this worker may need; nullopt without a limit.
  [[nodiscard]] std::optional<std::uint64_t> memory_limit_of(int worker) const {
    if (memory_limits.empty()) return std::nullopt;
    return memory_limits[memory_limits.size() == 1 ? 0 : index(worker)];
  }
  [[nodiscard]] const std::string& device_of(int worker) const {
    return device[device.size() == 1 ? 0 : index(worker)];
  }
  [[nodiscard]] bool on_gpu(int worker) const { return device_of(worker) == cuda_device; }
  [[nodiscard]] std::vector<bool> on_gpu_of(int workers) const {
    std::vector<bool> on_gpus;
    for (int w = 0; w < workers; ++w) on_gpus.push_back(on_gpu(w));
    return on_gpus;
  }
  /// True if some workers, or all of them, are GPUs.
  [[nodiscard]] bool uses_gpus() const { return std::ranges::find(device, cuda_device) != device.end(); }
  [[nodiscard]] bool is_mixed() const {
    return std::ranges::find(device, cpu_device) != device.end() && uses_gpus();
  }
};

/// A whole configuration as the user has written it, and the content of the profile that it names.
struct Config {
  model::ModelConfig model;
  model::DataConfig data;
  TrainingConfig training;
  CheckpointConfig checkpoint;
  EvaluateConfig evaluate;
  ScheduleConfig schedule;
  RuntimeConfig runtime;
  std::string source;  ///< the file that the configuration was read from, for messages
  /// The content of the file that `schedule.profile` names. Without that key: units that were measured for
  /// another schedule of the same comparison, or empty.
  plan::Profile profile;

  /// True if a training run evaluates: some key asks for it.
  [[nodiscard]] bool evaluates() const {
    return evaluate.every || evaluate.microbatches || !data.validation.empty();
  }
  /// Returns D: how many workers of the run each worker of a named schedule becomes. 1 without shards.
  [[nodiscard]] int workers_each() const { return schedule.tensor.value_or(model::max_shards(model)); }
};

/// Parts of a run that a program makes itself. Parts that are not set come from the configuration. Every rank
/// gives the same parts.
struct TrainerParts {
  /// The schedule, in place of `schedule:`. Workers, stages and micro-batches are its own; its stage graph
  /// must be the network's.
  std::optional<plan::Schedule> schedule = {};
  /// Builds the network for micro-batches of so many samples, in place of `model:`. `data` must be set, too.
  std::function<model::UnitGraph(const model::ModelConfig& config, std::size_t microbatch_size)> network = {};
  /// The data, in place of `data:`. Tasks on several threads call it at the same time.
  std::shared_ptr<const model::Dataset> data = {};
  /// The data of evaluations. With `data` or `network` a run that evaluates needs them.
  std::shared_ptr<const model::Dataset> validation = {};
  /// Start values by set of parameters (model::Network::sets), in place of `model.init` and `training.seed`.
  std::optional<std::vector<std::vector<float>>> weights = {};
  /// File that gets a line of JSON after each step.
  std::optional<std::filesystem::path> metrics = {};
};

}  // namespace starpipe::runtime
