// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "starpipe/model/memory_view.hpp"
#include "starpipe/model/stage.hpp"
#include "starpipe/plan/schedule/stage_graph.hpp"
#include "starpipe/plan/schedules/finer.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::model {

/// The key of kinds whose units may be cut into shards.
inline constexpr const char* tensor_key = "tensor";
/// The key that chooses where the outputs of shards are added up. With `each`, every shard that reads the sum
/// adds the outputs itself. With `one`, a stage adds them once, and the shards read its output.
inline constexpr const char* sums_key = "sums";
inline constexpr const char* sums_by_each = "each";
inline constexpr const char* sums_by_one = "one";

/// The largest number of sequences or samples of a micro-batch.
inline constexpr int max_samples = 1 << 20;

/// The value of a kind's own key: a whole number, a number, a truth value, text, or a list of whole numbers.
/// For a list with one number a configuration may give the number alone.
using OptionValue = std::variant<int, double, bool, std::string, std::vector<int>>;

/// Shards of the vocabulary: of the embedding, and of the head.
struct VocabularyShards {
  int shards = 1;  ///< 1: embedding and head are whole
  plan::ShardPlacement placement = plan::ShardPlacement::all;
};

/// Says what all slices of a sequence have equal: the number of tokens, or the work of the passes. With a
/// causal mask later tokens see more keys, so later slices of equal work have fewer tokens.
enum class SliceSizes : std::uint8_t { tokens, work };

/// The words of SliceSizes, in the order of the enum.
inline constexpr std::array<std::string_view, 2> slice_size_words = {"tokens", "work"};

/// `model:` of the configuration, and the precision.
struct ModelConfig {
  std::string kind = "gpt";  ///< one of network_kinds()
  /// Values of the kind's own keys (`layers`, `hidden`, ...); a key that is not here has its default.
  std::map<std::string, OptionValue, std::less<>> options;
  std::optional<std::filesystem::path> init;    ///< file with the parameters to start from: load_weights
  Precision precision = Precision::fp32;        ///< `runtime.precision`: stages are built for it
  VocabularyShards vocabulary = {};             ///< `schedule.vocabulary`
  int slices = 1;                               ///< `schedule.slices`: of each sequence
  SliceSizes slice_sizes = SliceSizes::tokens;  ///< `schedule.slice_sizes`
  std::vector<int> slice_tokens = {};           ///< the same as a list; where it is given it counts
  /// The tokens of each sequence for which NetworkKind::units makes layers; nullopt: all. build_network sets
  /// it.
  std::optional<Piece::Range> slice = {};
};

/// Returns the tokens of each slice of a sequence. Throws InputError for slices that the kind or its context
/// does not have.
std::vector<int> slice_sizes(const ModelConfig& config);

/// Returns the value of a key of the kind. Throws std::logic_error if the kind has no such key.
OptionValue option_value(const ModelConfig& config, std::string_view key);

/// Returns the same as a T, the type of the key's default. Throws std::bad_variant_access for another type.
template <class T = int>
T option(const ModelConfig& config, std::string_view key) {
  return std::get<T>(option_value(config, key));
}

/// Returns the value of a key that is a whole number; `otherwise` if the kind has no such key.
int option_or(const ModelConfig& config, std::string_view key, int otherwise);

/// Returns the largest number of shards of a layer (`model.tensor`); 1 for a kind without this key.
int max_shards(const ModelConfig& config);

/// Returns a value for people and for files: "4", "0.5", "true", "relu", "[2, 1]".
std::string to_string(const OptionValue& value);

/// A set of parameters, which are held, updated and saved together: the own parameters of one stage, or
/// parameters that several layers share.
struct ParameterSet {
  std::vector<int> stages;  ///< the stages that use them, ascending; one stage unless they are shared
  std::vector<Parameter> parameters;  ///< with the names of the first layer that uses them
  std::size_t size = 0;               ///< numbers of all of them together
  Precision precision = Precision::fp32;

  [[nodiscard]] int first_stage() const { return stages.front(); }
  /// Returns the size of the weights, the copy that passes read, in words of 4 bytes.
  [[nodiscard]] std::size_t weights_size() const { return words(precision, size); }
  /// True if the optimizer keeps an fp32 master of the parameters, besides the weights that passes read.
  [[nodiscard]] bool has_master() const { return precision == Precision::bf16 && size > 0; }
};

/// Numbers of all parameters, by set: sets have the numbers of Network::sets().
using SetValues = std::vector<std::vector<float>>;

/// Calls f(parameter, set, first) for each parameter of each set. `first`: the place of the parameter's first
/// number in the set.
template <class Function>
void for_each_parameter(std::span<const ParameterSet> sets, Function&& f) {
  for (std::size_t s = 0; s < sets.size(); ++s) {
    std::size_t first = 0;
    for (const Parameter& parameter : sets[s].parameters) {
      f(parameter, s, first);
      first += parameter.size();
    }
  }
}

/// A model cut into stages.
struct Network {
  ModelConfig config;
  int microbatch_size = 1;
  plan::StageGraph graph = plan::StageGraph::chain(1);
  std::vector<Stage> stages;  ///< for whole sequences
  /// The same stages for each slice of a sequence, [slice][stage]; empty without slices.
  std::vector<std::vector<Stage>> slices = {};
  std::vector<Piece::Range> slice_rows = {};  ///< by slice: its tokens of each sequence
  std::vector<int> cuts = {};  ///< the first unit of each stage but the first; of the first branch
  /// Maps each stage to its part of the chain of stages that the network would have without shards. Shards of
  /// the vocabulary, and the loss that joins them, are detached parts. Empty without shards.
  std::vector<plan::StagePart> parts = {};
  /// Returns the stage whose passes run on a micro-batch of the schedule: with slices, on one of them.
  [[nodiscard]] const Stage& stage(int stage, int microbatch) const {
    return slices.empty() ? stages[index(stage)] : slices[index(microbatch) % slices.size()][index(stage)];
  }
  /// Returns the number of stages of that chain; without shards, of `graph`.
  [[nodiscard]] int whole_stages() const;
  /// Returns T, the largest number of shards side by side; 1 without shards. Shards of the vocabulary do not
  /// count.
  [[nodiscard]] int shards() const;
  /// Returns all parameters, each once. Set s has stage s's own parameters and may be empty. The shared
  /// sets follow, in the order of the first layers that use them.
  [[nodiscard]] std::vector<ParameterSet> sets() const;
  /// Returns the numbers in sets() of the sets that `stage` shares, in the order of Stage::shared().
  [[nodiscard]] std::vector<std::size_t> shared_sets(int stage) const;
  /// Returns the sizes of each stage's messages, stash and weights, in bytes. The result has one entry for
  /// each stage; with K slices it has K for each, and that of stage s and slice k is s K + k.
  /// `shared_weights` has the weights that stages share.
  [[nodiscard]] std::vector<plan::StageSizes> sizes() const;
  /// Returns the shared sets: the stages that use each, and its bytes.
  [[nodiscard]] std::vector<plan::SharedWeights> shared_weights() const;
  [[nodiscard]] std::size_t parameter_count() const;
  /// Returns the position of `stage` among the stages that read the data, ascending: `branch` of
  /// Dataset::input. 0 for all shards of the embedding, which read the same data. -1 when the stage reads
  /// another stage's output.
  [[nodiscard]] int source_index(int stage) const;
};

/// Builds the model for micro-batches of `microbatch_size` sequences (gpt, llama) or samples (mlp) and cuts
/// it into `stages` stages between units. Units of gpt and llama: embedding, each block, head (last
/// normalisation, output projection, loss); of mlp: each hidden layer with its GELU, then the last layer with
/// the loss.
///
/// `cuts`: the first unit of each stage but the first, ascending. Without cuts, stages get contiguous units
/// such that the largest share of FLOPs is the smallest possible. A network with several branches becomes a
/// tree: n stages for each branch, branch by branch, then the join as last stage, so `stages` is
/// branches * n + 1. `cuts` are then the n - 1 cuts of one branch, and all branches are cut alike.
/// Throws InputError naming the key (`model.heads`, `schedule.cuts`, ...) for values that cannot work.
Network build_network(const ModelConfig& config, int microbatch_size, int stages,
                      const std::vector<int>& cuts = {});

/// Returns the network with each unit as a stage. Throws InputError as `build_network` does.
Network build_units(const ModelConfig& config, int microbatch_size);

/// Returns the network without shards, as one stage; nullopt if it has no shards.
std::optional<Network> whole_network(const Network& network);

/// Returns the names of the units that `cuts` counts, in order: of the chain, or of the first branch.
/// Throws InputError as `build_network` does.
std::vector<std::string> unit_names(const ModelConfig& config);

/// Returns the values that `model.kind` may have, ascending.
std::vector<std::string> network_kinds();

/// Writes the start values of parameters, in sequence, to `values`. They depend only on `seed` and each
/// parameter's name.
void initial_parameters(std::span<const Parameter> parameters, std::uint64_t seed, std::span<float> values);
/// Returns the same values.
std::vector<float> initial_parameters(std::span<const Parameter> parameters, std::uint64_t seed);

/// Returns the weights that passes read: the parameters, rounded to the precision.
std::vector<float> rounded_weights(Precision precision, ConstFloatView parameters);

}  // namespace starpipe::model
