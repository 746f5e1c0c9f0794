// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starpipe/model/precision.hpp"
#include "starpipe/model/stage.hpp"
#include "starpipe/plan/schedule/stage_graph.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::model {

/// `model:` of the configuration. Fields that a kind does not have keep their default and are refused
/// when set (the command line knows which were set).
struct ModelConfig {
  std::string kind = "gpt";                   ///< "gpt" or "mlp"
  int layers = 4;                             ///< gpt: blocks; mlp: hidden layers (of each leg)
  int hidden = 128;                           ///< columns of the hidden activations
  int heads = 4;                              ///< gpt
  int context = 128;                          ///< gpt: tokens of a sequence
  int inputs = 16;                            ///< mlp: features of a sample (each leg gets its equal share)
  int outputs = 4;                            ///< mlp: columns of the regression target
  int legs = 1;                               ///< mlp: encoder legs, joined before the last layer
  std::optional<std::filesystem::path> init;  ///< safetensors file to start from
  Precision precision = Precision::fp32;      ///< `runtime.precision`: the stages are made for it
};

/// A model cut into stages.
struct Network {
  ModelConfig config;
  int microbatch_size = 1;
  plan::StageGraph graph = plan::StageGraph::chain(1);
  std::vector<Stage> stages;
  /// Bytes of what each stage exchanges and keeps, for `plan`.
  [[nodiscard]] std::vector<plan::StageSizes> sizes() const;
  [[nodiscard]] std::size_t parameter_count() const;
  /// Which of the sources `stage` is, ascending: the `leg` of Dataset::input. -1 when it is none.
  [[nodiscard]] int source_index(int stage) const;
};

/// Builds the model for micro-batches of `microbatch_size` sequences (gpt) or samples (mlp) and cuts it
/// into `stages` stages at unit boundaries. Units of gpt: embedding, blocks, head (last LayerNorm, output
/// projection, loss); of mlp: each hidden layer with its GELU, then the last layer with the loss.
///
/// `cuts`: the first unit of each stage but the first, ascending; when empty, stages get contiguous units
/// with the smallest largest share of FLOPs. With legs > 1 the graph is a tree: legs * n stages (leg by
/// leg, n stages each) and the join as the last stage, so `stages` = legs * n + 1; `cuts` are then those
/// of one leg, n - 1 of them, and all legs are cut alike.
/// Throws InputError naming the key (`model.heads`, `schedule.cuts`, ...) for values that cannot work.
Network build_network(const ModelConfig& config, int microbatch_size, int stages,
                      const std::vector<int>& cuts = {});

/// The units that `cuts` counts, in order. With legs > 1 those of one leg.
/// Throws InputError as `build_network` does.
std::vector<std::string> unit_names(const ModelConfig& config);

/// Kinds that `build_network` knows.
std::vector<std::string> network_kinds();

/// Start values of a stage's parameters, in the order of `Stage::parameters()`. They depend on `seed` and
/// each parameter's name alone.
std::vector<float> initial_parameters(const Stage& stage, std::uint64_t seed);

/// What the passes of a stage read as its parameters: the parameters in its precision, weights_size() words.
std::vector<float> rounded_weights(const Stage& stage, std::span<const float> parameters);

}  // namespace starpipe::model
