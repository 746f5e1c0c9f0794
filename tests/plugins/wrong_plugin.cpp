// SPDX-License-Identifier: Apache-2.0
// A plug-in with a network whose gradients are wrong on purpose: `model.fault` says how. For `verify`.
#include <atomic>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/model/layer.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/plan/registry/plugin.hpp"

namespace {

using namespace starpipe;

enum class Fault { none, factor, overwrites, half, backward, skips_odd, one_in_four, big, memory };
const std::vector<std::string> faults = {"none",      "factor",      "overwrites", "half",  "backward",
                                         "skips-odd", "one-in-four", "big",        "memory"};

/// Scales each column. Its only parameter has a factor for each of them.
class Scaled final : public model::Layer {
 public:
  explicit Scaled(const model::LayerSpec& spec)
      : Layer(spec), fault_(static_cast<Fault>(model::option(spec, "fault", 0))) {}

  [[nodiscard]] std::vector<model::Parameter> parameters() const override {
    return {{name_ + ".scale", {columns_}, 0.1, 1}};
  }
  [[nodiscard]] std::size_t stash_size() const override { return rows_ * columns_; }
  [[nodiscard]] double flops() const override { return static_cast<double>(rows_ * columns_); }

  void forward(const Forward& pass) const noexcept override {
    if (fault_ == Fault::memory) const std::vector<float> too_large(std::size_t{1} << 60U);
    for (std::size_t i = 0; i < pass.input.size(); ++i) {
      pass.stash[i] = pass.input[i];
      pass.output[i] = pass.input[i] * pass.parameters[i % columns_];
    }
  }

  void backward_input(const Backward& pass) const noexcept override {
    const float factor = fault_ == Fault::backward ? 1.1F : 1.0F;
    for (std::size_t i = 0; i < pass.output_gradient.size(); ++i) {
      pass.input_gradient[i] = factor * pass.output_gradient[i] * pass.parameters[i % columns_];
    }
  }

  void backward_weights(const Weights& pass) const noexcept override {
    const int call = calls_++;
    if (fault_ == Fault::skips_odd && call % 2 == 1) return;
    if (fault_ == Fault::one_in_four && call % 4 != 0) return;
    const float factor = fault_ == Fault::factor ? 1.1F : 1.0F;
    const std::size_t columns = fault_ == Fault::half ? columns_ / 2 : columns_;
    for (std::size_t c = 0; c < columns; ++c) {
      float sum = 0;
      for (std::size_t r = 0; r < rows_; ++r) {
        if (fault_ == Fault::big && std::abs(pass.stash[r * columns_ + c]) > 2.5F) continue;
        sum += factor * pass.stash[r * columns_ + c] * pass.output_gradient[r * columns_ + c];
      }
      pass.parameter_gradient[c] = fault_ == Fault::overwrites ? sum : pass.parameter_gradient[c] + sum;
    }
  }

 private:
  Fault fault_;
  mutable std::atomic<int> calls_ = 0;  // of backward_weights
};

model::UnitGraph units(const model::ModelConfig& config, std::size_t rows) {
  constexpr std::size_t width = 8;
  double fault = 0;
  while (faults[static_cast<std::size_t>(fault)] != model::option<std::string>(config, "fault")) ++fault;
  const auto linear = [&](const std::string& name, std::size_t inputs, double outputs) {
    return model::layer_op({"linear", name, rows, inputs, {{"outputs", outputs}, {"deviation", 0.5}}},
                           config.precision);
  };
  const auto scaled = [&](const std::string& name, double wrong) {
    return model::layer_op({"scaled", name, rows, width, {{"fault", wrong}}}, config.precision);
  };
  model::UnitGraph graph;
  graph.rows = rows;
  graph.branch_inputs = index(model::option(config, "inputs"));
  const int outputs = model::option(config, "outputs");
  graph.branches = {{{"first", {linear("first", graph.branch_inputs, width), scaled("right", 0)}},
                     {"second", {scaled("suspect", fault)}},
                     {"third", {linear("third", width, width)}},
                     {"head", {linear("head", width, outputs)}}}};
  graph.loss = model::make_loss("mse", rows, index(outputs), config.precision);
  return graph;
}

const bool has_layer = model::register_layer(
    "scaled", [](const model::LayerSpec& spec) { return std::make_unique<Scaled>(spec); });
const bool has_network =
    model::register_network({.name = "suspect",
                             .meaning = "A layer that may be wrong.",
                             .data = {"synthetic"},
                             .keys = {{"inputs", 4, "Features.", model::from_1_to(64)},
                                      {"outputs", 2, "Columns of the target.", model::from_1_to(64)},
                                      {"fault", std::string("none"), "What is wrong.", {}, faults}},
                             .units = units});

#ifdef STARPIPE_NETWORK_ALONE
constexpr bool with_schedule = false;
#else
constexpr bool with_schedule = true;
#endif

plan::Schedule in_order(const plan::ScheduleRequest& request) {
  return plan::Schedule(
      {.name = "in-order",
       .graph = request.graph ? *request.graph : plan::StageGraph::chain(request.workers),
       .microbatches = request.microbatches,
       .workers = request.workers,
       .placement =
           [](const plan::Job& job) { return plan::Placement{.weights = job.stage, .compute = job.stage}; },
       .priority = [](const plan::Job& job) { return job.microbatch; }});
}

}  // namespace

STARPIPE_PLUGIN(schedules) {
  if (with_schedule) schedules.push_back({"in-order", "", "", in_order});
}
