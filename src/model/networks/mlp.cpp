// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {
namespace {

constexpr int most_columns = 1 << 20;

/// Hidden layers with GELU, a linear head, squared error. Each of several branches encodes its share of the
/// features, and the head reads their outputs side by side.
UnitGraph units(const ModelConfig& config, std::size_t microbatch_size) {
  const int features = option(config, "inputs");
  const int branch_count = option(config, "branches");
  if (features % branch_count != 0) {
    throw InputError(
        fmt::format("model.branches: {} does not divide model.inputs, {}", branch_count, features));
  }
  const std::size_t rows = microbatch_size;
  const int width = option(config, "hidden");
  const std::size_t hidden = index(width);
  const std::size_t branches = index(branch_count);
  const int outputs = option(config, "outputs");
  const auto linear = [&](const std::string& name, std::size_t inputs, int columns) {
    const double deviation = 1 / std::sqrt(3.0 * static_cast<double>(inputs));  // as torch.nn.Linear starts
    return layer_op({"linear",
                     name,
                     rows,
                     inputs,
                     {{"outputs", columns}, {"deviation", deviation}, {"bias_deviation", deviation}}},
                    config.precision);
  };

  UnitGraph graph;
  graph.rows = rows;
  graph.branch_inputs = index(features) / branches;
  for (std::size_t branch = 0; branch < branches; ++branch) {
    // Branches were called legs when the first weights files were saved; a parameter keeps its name.
    const std::string prefix = branches > 1 ? fmt::format("legs.{}.layers.", branch) : "layers.";
    std::vector<Unit> hidden_layers;
    for (int n = 0; n < option(config, "layers"); ++n) {
      const std::string name = prefix + std::to_string(n);
      hidden_layers.push_back({"layer " + std::to_string(n),
                               {linear(name, n == 0 ? graph.branch_inputs : hidden, width),
                                layer_op({"gelu", name, rows, hidden, {}}, config.precision)}});
    }
    graph.branches.push_back(std::move(hidden_layers));
  }
  Unit head = {"head", {linear("head", branches * hidden, outputs)}};
  if (branches > 1) {
    graph.join = std::move(head);
  } else {
    graph.branches[0].push_back(std::move(head));
  }
  graph.loss = make_loss("mse", rows, index(outputs), config.precision);
  return graph;
}

const bool registered = register_network(
    {.name = "mlp",
     .meaning = "a multilayer perceptron with GELU and squared error, of one or several branches.",
     .data = {std::string(synthetic_data)},
     .keys = {{"layers", 4, "Number of hidden layers of each branch.", from_1_to(1 << 16)},
              {"hidden", 128, "Columns of the hidden activations.", from_1_to(most_columns)},
              {"inputs", 16, "Features of a sample; each branch reads an equal share.",
               from_1_to(most_columns)},
              {"outputs", 4, "Columns of the regression target.", from_1_to(most_columns)},
              {"branches",
               1,
               "Number of encoders side by side; the last layer joins their outputs.",
               from_1_to(1 << 10),
               {},
               "legs"}},
     .units = units});

}  // namespace
}  // namespace starpipe::model
