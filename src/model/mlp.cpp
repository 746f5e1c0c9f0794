// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "model/networks.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::model {

/// Hidden layers with GELU, a linear head, squared error. With legs, each encodes its share of the
/// features and the head reads their outputs side by side.
UnitGraph mlp_units(const ModelConfig& config, std::size_t microbatch_size) {
  constexpr int kMost = 1 << 20;
  require_range("model.layers", config.layers, 1, 1 << 16);
  require_range("model.hidden", config.hidden, 1, kMost);
  require_range("model.inputs", config.inputs, 1, kMost);
  require_range("model.outputs", config.outputs, 1, kMost);
  require_range("model.legs", config.legs, 1, 1 << 10);
  if (config.inputs % config.legs != 0) {
    throw InputError("model.legs: " + std::to_string(config.legs) + " does not divide model.inputs, " +
                     std::to_string(config.inputs));
  }
  const std::size_t rows = microbatch_size;
  const auto hidden = static_cast<std::size_t>(config.hidden);
  const auto legs = static_cast<std::size_t>(config.legs);
  const auto linear = [&](const std::string& name, std::size_t inputs, int outputs) {
    const double deviation = 1 / std::sqrt(3.0 * static_cast<double>(inputs));  // that of torch.nn.Linear
    return layer_op({"linear",
                     name,
                     rows,
                     inputs,
                     {{"outputs", outputs}, {"deviation", deviation}, {"bias_deviation", deviation}}},
                    config.precision);
  };

  UnitGraph graph;
  graph.rows = rows;
  graph.leg_inputs = static_cast<std::size_t>(config.inputs) / legs;
  for (std::size_t leg = 0; leg < legs; ++leg) {
    const std::string prefix = legs > 1 ? "legs." + std::to_string(leg) + ".layers." : "layers.";
    std::vector<Unit> units;
    for (int n = 0; n < config.layers; ++n) {
      const std::string name = prefix + std::to_string(n);
      units.push_back({"layer " + std::to_string(n),
                       {linear(name, n == 0 ? graph.leg_inputs : hidden, config.hidden),
                        layer_op({"gelu", name, rows, hidden, {}}, config.precision)}});
    }
    graph.legs.push_back(std::move(units));
  }
  Unit head = {"head", {linear("head", legs * hidden, config.outputs)}};
  if (legs > 1) {
    graph.join = std::move(head);
  } else {
    graph.legs[0].push_back(std::move(head));
  }
  graph.loss = make_loss("mse", rows, static_cast<std::size_t>(config.outputs), config.precision);
  return graph;
}

}  // namespace starpipe::model
