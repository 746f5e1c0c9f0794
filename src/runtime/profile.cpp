// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/profile.hpp"

#include <cblas.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "starpipe/model/weights.hpp"

namespace starpipe::runtime {
namespace {

using Floats = std::vector<float>;

/// A network cut into its units: of a tree, the stages of the first leg are they.
model::Network units_of(const Config& config, std::size_t units) {
  const int legs = config.model.legs;
  const auto count = static_cast<int>(units);
  return model::build_network(config.model, config.training.microbatch_size,
                              legs > 1 ? legs * count + 1 : count);
}

/// Times of the three passes of one unit, by repetition.
using Samples = std::array<std::vector<double>, 3>;

/// One unit with all its data.
struct Unit {
  Unit(const model::Stage& s, std::uint64_t seed)
      : stage(&s),
        weights(model::rounded_weights(s, model::initial_parameters(s, seed))),
        output(s.is_sink() ? 1 : s.output_size()),
        stash(s.stash_size()),
        gradient_stash(s.gradient_stash_size()),
        input_gradient(s.input_size(0)),
        parameter_gradient(s.parameter_size()),
        scratch(s.scratch_size()) {}

  const model::Stage* stage;
  Floats weights, output, stash, gradient_stash, input_gradient, parameter_gradient, scratch;
  Samples samples;
};

template <class Function>
double seconds(Function&& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// F through all units, then B and W back.
class Run {
 public:
  Run(const Config& config, const model::Network& network, std::size_t units)
      : data_(model::make_dataset(config.data, config.model, config.training.microbatch_size,
                                  config.training.seed)),
        loss_scale_(1.0F / static_cast<float>(config.training.microbatches.value_or(1))) {
    for (std::size_t u = 0; u < units; ++u) units_.emplace_back(network.stages[u], config.training.seed);
    const model::Stage& first = *units_.front().stage;
    const model::Stage& last = *units_.back().stage;
    input_.resize(first.input_size(0));
    target_.resize(last.rows() * last.target_columns());
    gradient_.assign(last.output_size(), 1.0F);  // a number in any precision
  }

  /// Returns the times by unit and pass.
  std::vector<std::array<double, 3>> repeat(int microbatch) {
    model::load_input(*data_, *units_.front().stage, 0, microbatch, 0, input_);
    if (!target_.empty()) data_->target(0, microbatch, target_);
    std::vector<std::array<double, 3>> times(units_.size());
    for (std::size_t u = 0; u < units_.size(); ++u) {
      Unit& unit = units_[u];
      const std::array input = {model::ConstMemory(u == 0 ? input_ : units_[u - 1].output)};
      times[u][0] = seconds([&] {
        unit.stage->forward(unit.weights, input, unit.stage->is_sink() ? target_ : Floats{}, unit.output,
                            unit.stash, unit.scratch);
      });
    }
    for (std::size_t u = units_.size(); u-- > 0;) backward(u, times[u]);
    return times;
  }

 private:
  void backward(std::size_t u, std::array<double, 3>& times) {
    Unit& unit = units_[u];
    const bool last = u + 1 == units_.size();
    const model::ConstMemory after = last ? gradient_ : units_[u + 1].input_gradient;
    const std::span output_gradients(&after, unit.stage->is_sink() ? 0 : 1);
    const model::Memory before = unit.input_gradient;
    const std::span input_gradients(&before, u == 0 ? 0 : 1);
    times[1] = seconds([&] {
      unit.stage->backward_input(unit.weights, unit.stash, output_gradients, loss_scale_, input_gradients,
                                 unit.gradient_stash, unit.scratch);
    });
    times[2] = seconds([&] {
      unit.stage->backward_weights(unit.stash, unit.gradient_stash, unit.parameter_gradient, unit.scratch);
    });
  }

  std::unique_ptr<model::Dataset> data_;
  float loss_scale_;
  std::vector<Unit> units_;
  Floats input_, target_, gradient_;
};

/// The value that a share of the sorted ones is below.
double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)))];
}

}  // namespace

std::vector<MeasuredLayer> measure_layers(const Config& config, int repetitions) {
  openblas_set_num_threads(1);  // as a worker
  const std::vector<std::string> names = model::unit_names(config.model);
  const model::Network network = units_of(config, names.size());
  const std::vector<plan::StageSizes> sizes = network.sizes();
  Run run(config, network, names.size());
  std::vector<Samples> samples(names.size());
  for (int r = 0; r <= repetitions; ++r) {
    const auto times = run.repeat(r % config.training.microbatches.value_or(1));
    for (std::size_t u = 0; r > 0 && u < names.size(); ++u) {
      for (std::size_t pass = 0; pass < 3; ++pass) samples[u][pass].push_back(times[u][pass]);
    }
  }
  std::vector<MeasuredLayer> layers;
  for (std::size_t u = 0; u < names.size(); ++u) {
    for (std::vector<double>& pass : samples[u]) std::ranges::sort(pass);
    const auto& [f, b, w] = samples[u];
    const auto middle = [](const std::vector<double>& sorted) { return quantile(sorted, 0.5); };
    const auto range = [](const std::vector<double>& sorted) {
      return quantile(sorted, 0.75) - quantile(sorted, 0.25);
    };
    layers.push_back({.costs = {.name = names[u],
                                .time = {.F = middle(f), .B = middle(b), .W = middle(w)},
                                .sizes = sizes[u]},
                      .spread = {.F = range(f), .B = range(b), .W = range(w)}});
  }
  return layers;
}

}  // namespace starpipe::runtime
