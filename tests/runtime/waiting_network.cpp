// SPDX-License-Identifier: Apache-2.0
// The network `waiting`, for tests of real runs whose times are known: each unit is a small linear layer and
// a layer that sleeps in F and in B. One unit may sleep longer, always or in one step.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/model/layer.hpp"
#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {
namespace {

/// Hands on what it gets. Options: milliseconds of F and B, and those that come on top in the calls `first`
/// to `last` of F, counted from 0, and in as many calls of B.
class Waiting final : public Layer {
 public:
  explicit Waiting(const LayerSpec& spec) : Layer(spec), options_(spec.options) {
    check_options(spec, {"F", "B", "slow_F", "slow_B", "first", "last"});
  }

  [[nodiscard]] double flops() const override { return 1e6; }

  void forward(const Forward& pass) const noexcept override {
    std::ranges::copy(pass.input, pass.output.begin());
    wait("F", "slow_F", forward_calls_++);
  }
  void backward_input(const Backward& pass) const noexcept override {
    std::ranges::copy(pass.output_gradient, pass.input_gradient.begin());
    wait("B", "slow_B", backward_calls_++);
  }

 private:
  void wait(const char* usual, const char* on_top, int call) const {
    double milliseconds = options_.at(usual);
    if (call >= options_.at("first") && call <= options_.at("last")) milliseconds += options_.at(on_top);
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
  }

  std::map<std::string, double> options_;
  mutable std::atomic<int> forward_calls_ = 0;
  mutable std::atomic<int> backward_calls_ = 0;
};

const bool registered_layer = register_layer<Waiting>("waiting");

UnitGraph units(const ModelConfig& config, std::size_t microbatch_size) {
  const int columns = option(config, "inputs");
  std::vector<Unit> chain;
  for (int n = 0; n < option(config, "layers"); ++n) {
    const bool slow = n == option(config, "slow");
    const auto on_top = [&](const char* key) { return slow ? option<double>(config, key) : 0.0; };
    const std::string name = "layers." + std::to_string(n);
    chain.push_back(
        {name,
         {layer_op(
              {"linear", name, microbatch_size, index(columns), {{"outputs", columns}, {"deviation", 0.3}}},
              config.precision),
          layer_op({"waiting",
                    name,
                    microbatch_size,
                    index(columns),
                    {{"F", option<double>(config, "F")},
                     {"B", option<double>(config, "B")},
                     {"slow_F", on_top("slow_F")},
                     {"slow_B", on_top("slow_B")},
                     {"first", option(config, "first")},
                     {"last", option(config, "last")}}},
                   config.precision)}});
  }
  UnitGraph graph;
  graph.rows = microbatch_size;
  graph.branches = {std::move(chain)};
  graph.branch_inputs = index(columns);
  graph.loss = make_loss("mse", microbatch_size, index(columns), config.precision);
  return graph;
}

const bool registered_network =
    register_network({.name = "waiting",
                      .meaning = "layers that sleep.",
                      .data = {"synthetic"},
                      .keys = {{"layers", 4, "Number of layers.", from_1_to(64)},
                               {"inputs", 4, "Columns of everything.", from_1_to(64)},
                               {"outputs", 4, "The same number.", from_1_to(64)},
                               {"F", 2.0, "Milliseconds of F.", {.min = 0}},
                               {"B", 2.0, "Milliseconds of B.", {.min = 0}},
                               {"slow", 0, "The layer that may be slow."},
                               {"slow_F", 0.0, "Milliseconds on top of its F.", {.min = 0}},
                               {"slow_B", 0.0, "Milliseconds on top of its B.", {.min = 0}},
                               {"first", 0, "First slow call of a pass."},
                               {"last", 1000000, "Last slow call of a pass."}},
                      .units = units});

}  // namespace
}  // namespace starpipe::model
