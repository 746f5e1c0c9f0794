// SPDX-License-Identifier: Apache-2.0
// Small networks for tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "support/floats.hpp"

namespace starpipe {

using ModelKeys = std::map<std::string, model::OptionValue, std::less<>>;

/// Returns the model with some of its keys changed.
inline model::ModelConfig with(model::ModelConfig config, const ModelKeys& changes) {
  for (const auto& [key, value] : changes) config.options[key] = value;
  return config;
}

/// Returns a small model of a kind, with some of its keys changed.
inline model::ModelConfig small(const std::string& kind, const ModelKeys& changes = {}) {
  static const std::map<std::string, ModelKeys> keys = {
      {"gpt", {{"layers", 2}, {"hidden", 16}, {"heads", 2}, {"context", 16}}},
      {"llama",
       {{"layers", 2}, {"hidden", 16}, {"heads", 4}, {"kv_heads", 2}, {"intermediate", 12}, {"context", 16}}},
      {"mlp", {{"layers", 3}, {"hidden", 12}, {"inputs", 4}, {"outputs", 3}}}};
  model::ModelConfig config;
  config.kind = kind;
  config.options = keys.at(kind);
  return with(std::move(config), changes);
}

/// Networks with the same `max_stages` differ in their cuts only.
inline model::Network tiny_gpt(int stages, model::Precision precision = model::Precision::fp32,
                               int max_stages = 0, bool tied = false) {
  model::ModelConfig config =
      small("gpt", {{"layers", std::max({4, stages - 2, max_stages - 2})}, {"tied", tied}});
  config.precision = precision;
  return model::build_network(config, 1, stages);
}

/// A GPT whose head shares the embedding's table.
inline model::Network tied_gpt(int stages) { return tiny_gpt(stages, model::Precision::fp32, 0, true); }

/// A model whose sequences are cut into slices.
inline model::Network sliced(const std::string& kind, int stages, int slices, const ModelKeys& keys = {},
                             model::Precision precision = model::Precision::fp32) {
  model::ModelConfig config = with(small(kind, {{"layers", std::max(2, stages - 2)}}), keys);
  config.precision = precision;
  config.slices = slices;
  return model::build_network(config, 2, stages);
}

/// A GPT whose half-blocks are cut into shards. `shards`: the numbers of the blocks, in turn. `vocabulary`:
/// the shards of embedding and head.
inline model::Network sharded_gpt(int stages, const std::vector<int>& shards,
                                  model::Precision precision = model::Precision::fp32, int vocabulary = 1,
                                  int slices = 1) {
  const int layers = std::max(2, stages - 2);
  std::vector<int> of_blocks;
  for (int n = 0; n < layers; ++n) of_blocks.push_back(shards[index(n) % shards.size()]);
  model::ModelConfig config =
      small("gpt", {{"layers", layers}, {"heads", 4}, {"tensor", std::move(of_blocks)}});
  config.vocabulary.shards = vocabulary;
  config.slices = slices;
  config.precision = precision;
  return model::build_network(config, 1, stages);
}

inline model::Network tiny_llama(int stages, model::Precision precision = model::Precision::fp32,
                                 bool tied = false) {
  model::ModelConfig config = small("llama", {{"layers", std::max(2, stages - 2)}, {"tied", tied}});
  config.precision = precision;
  return model::build_network(config, 1, stages);
}

/// `branches` of stages and their join.
inline model::Network tiny_mlp(int stages, int branches = 1,
                               model::Precision precision = model::Precision::fp32) {
  model::ModelConfig config = small("mlp", {{"layers", std::max(3, stages)}, {"branches", branches}});
  config.precision = precision;
  return model::build_network(config, 2, stages);
}

/// A network of linear stages on any stage graph. With `bare`, the first stage that is not a source has no
/// parameters.
inline model::Network dag_network(const plan::StageGraph& graph, bool bare = false,
                                  model::Precision precision = model::Precision::fp32) {
  constexpr std::size_t rows = 3;
  constexpr std::size_t columns = 4;
  model::Network network;
  network.config.kind = "dag";
  network.config.precision = precision;
  network.graph = graph;
  for (int s = 0; s < graph.size(); ++s) {
    const std::size_t joined = std::max<std::size_t>(1, graph.pred(s).size());
    const bool sink = s == graph.sink();
    std::vector<model::StageOp> ops;
    if (bare && !sink && graph.pred(s).size() == 1) {
      bare = false;
    } else {
      const model::LayerSpec linear{"linear",
                                    "s" + std::to_string(s),
                                    rows,
                                    columns * joined,
                                    {{"outputs", static_cast<double>(columns)}}};
      ops.push_back({model::StageOp::Kind::layer, model::make_layer(linear, precision)});
    }
    if (!sink) {
      ops.push_back(
          {model::StageOp::Kind::layer, model::make_layer({"gelu", "g", rows, columns, {}}, precision)});
    }
    std::shared_ptr<const model::Loss> loss;
    if (sink) loss = model::make_loss("mse", rows, columns, precision);
    network.stages.emplace_back(std::move(ops), rows, std::vector<std::size_t>(joined, columns),
                                std::move(loss), precision);
  }
  return network;
}

/// Two towers of two stages, and their join. Each stage of the second tower shares the weights of the same
/// stage of the first one.
inline model::Network two_towers(model::Precision precision = model::Precision::fp32) {
  constexpr std::size_t rows = 3;
  constexpr std::size_t columns = 4;
  const auto stage = [&](const std::string& name, std::size_t inputs, bool sink, const std::string& shared) {
    const model::LayerSpec linear = {
        "linear", name, rows, columns * inputs, {{"outputs", double{columns}}, {"deviation", 0.5}}};
    std::vector<model::StageOp> ops = {
        {model::StageOp::Kind::layer, model::make_layer(linear, precision), shared}};
    if (!sink)
      ops.push_back(
          {model::StageOp::Kind::layer, model::make_layer({"gelu", "g", rows, columns, {}}, precision)});
    return model::Stage(std::move(ops), rows, std::vector<std::size_t>(inputs, columns),
                        sink ? model::make_loss("mse", rows, columns, precision) : nullptr, precision);
  };
  model::Network network;
  network.config.kind = "dag";
  network.config.precision = precision;
  network.graph = plan::StageGraph(5, {{0, 1}, {2, 3}, {1, 4}, {3, 4}});
  for (const char* tower : {"left", "right"}) {
    for (const char* part : {"first", "second"})
      network.stages.push_back(stage(std::string(tower) + "." + part, 1, false, part));
  }
  network.stages.push_back(stage("join", 2, true, ""));
  return network;
}

/// Returns the parameters that training starts from.
inline std::vector<Floats> start_values(const model::Network& network) {
  std::vector<Floats> parameters;
  for (const model::ParameterSet& set : network.sets())
    parameters.push_back(model::initial_parameters(set.parameters, 1));
  return parameters;
}

/// The costs that a network decides.
inline plan::Costs costs_of(const model::Network& network) {
  plan::Costs costs;
  costs.sizes = network.sizes();
  costs.slices = std::max(1, static_cast<int>(network.slices.size()));
  costs.shared = network.shared_weights();
  return plan::with_known_copies(costs);
}

}  // namespace starpipe
