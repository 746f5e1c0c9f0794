// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/networks/shards.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {
namespace {

constexpr int max_columns = 1 << 20;

/// Returns a hidden layer and its GELU for one of its shards, which has outputs of the linear layer. GELU
/// takes each output by itself, so the next layer reads the outputs of all shards side by side.
std::vector<StageOp> hidden_shard(const ModelConfig& config, LayerSpec linear, const Shard& shard) {
  const std::size_t all = size_option(linear, "outputs");
  const std::size_t outputs = all / shard.of;
  std::vector<Piece> pieces = {rows_piece(all, linear.columns, shard.k, shard.of),
                               vector_piece(all, shard.k, shard.of)};
  linear.options["outputs"] = static_cast<double>(outputs);
  const LayerSpec gelu = {"gelu", linear.name, linear.rows, outputs, {}};
  return {with_pieces(layer_op(linear, config.precision), shard, std::move(pieces)),
          layer_op(gelu, config.precision)};
}

Unit hidden_unit(const ModelConfig& config, const std::string& name, const LayerSpec& linear,
                 std::size_t shards) {
  if (shards == 1) return {name, hidden_shard(config, linear, {0, 1})};
  std::vector<std::vector<StageOp>> all;
  for (std::size_t k = 0; k < shards; ++k) all.push_back(hidden_shard(config, linear, {k, shards}));
  return {.name = name, .ops = {}, .halves = {std::move(all)}, .join = Join::columns};
}

/// Hidden layers with GELU, a linear head, squared error. Each of several branches encodes its share of the
/// features, and the head reads their outputs side by side.
UnitGraph mlp_units(const ModelConfig& config, std::size_t microbatch_size) {
  const int features = option(config, "inputs");
  const int branch_count = option(config, "branches");
  if (features % branch_count != 0) {
    throw InputError(
        fmt::format("model.branches: {} does not divide model.inputs, {}", branch_count, features));
  }
  if (branch_count > 1 && max_shards(config) > 1) {
    throw InputError(fmt::format(
        "model.tensor: does not apply with model.branches, {}: only a chain has shards", branch_count));
  }
  const std::size_t rows = microbatch_size;
  const int width = option(config, "hidden");
  require_shards_divide(config, "hidden", width);
  const std::vector<std::size_t> shards = shards_of_layers(config);
  const std::size_t hidden = index(width);
  const std::size_t branches = index(branch_count);
  const int outputs = option(config, "outputs");
  const auto linear = [&](const std::string& name, std::size_t inputs, int columns) {
    const double deviation = 1 / std::sqrt(3.0 * static_cast<double>(inputs));  // as torch.nn.Linear starts
    return LayerSpec{"linear",
                     name,
                     rows,
                     inputs,
                     {{"outputs", columns}, {"deviation", deviation}, {"bias_deviation", deviation}}};
  };

  UnitGraph graph;
  graph.rows = rows;
  graph.branch_inputs = index(features) / branches;
  for (std::size_t branch = 0; branch < branches; ++branch) {
    const std::string prefix = branches > 1 ? fmt::format("branches.{}.layers.", branch) : "layers.";
    std::vector<Unit> hidden_layers;
    for (int n = 0; n < option(config, "layers"); ++n) {
      const std::string name = prefix + std::to_string(n);
      hidden_layers.push_back(hidden_unit(config, "layer " + std::to_string(n),
                                          linear(name, n == 0 ? graph.branch_inputs : hidden, width),
                                          shards[index(n)]));
    }
    graph.branches.push_back(std::move(hidden_layers));
  }
  Unit head = {"head", {layer_op(linear("head", branches * hidden, outputs), config.precision)}};
  if (branches > 1) {
    graph.join = std::move(head);
  } else {
    graph.branches[0].push_back(std::move(head));
  }
  graph.loss = make_loss("mse", rows, index(outputs), config.precision);
  return graph;
}

const bool registered_mlp = register_network(
    {.name = "mlp",
     .meaning = "a multilayer perceptron with GELU and squared error, of one or several branches.",
     .data = {std::string(synthetic_data)},
     .keys =
         {{"layers", 4, "Number of hidden layers of each branch.", from_1_to(1 << 16)},
          {"hidden", 128, "Columns of the hidden activations.", from_1_to(max_columns)},
          {"inputs", 16, "Features of a sample; each branch reads an equal share.", from_1_to(max_columns)},
          {"outputs", 4, "Columns of the regression target.", from_1_to(max_columns)},
          {"branches", 1, "Number of encoders side by side; the last layer joins their outputs.",
           from_1_to(1 << 10)},
          tensor_network_key("Shards into which each hidden layer is cut, with as many columns each, or a "
                             "list with one number for each layer. A number divides `hidden`.")},
     .units = mlp_units});

}  // namespace
}  // namespace starpipe::model
