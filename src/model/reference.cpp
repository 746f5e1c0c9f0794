// SPDX-License-Identifier: Apache-2.0
#include "model/reference.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "model/microbatch_runner.hpp"
#include "starpipe/model/gradient_norm.hpp"

namespace starpipe::model {
namespace {

using Floats = std::vector<float>;

/// The norm of the whole gradient, [set].
double norm_of(const Network& network, const std::vector<Floats>& gradients) {
  std::vector<double> sums;
  const std::vector<ParameterSet> sets = network.sets();
  for (std::size_t s = 0; s < gradients.size(); ++s) {
    std::span<const float> left = gradients[s];
    for (const Parameter& parameter : sets[s].parameters) {
      sums.push_back(sum_of_squares(left.first(parameter.size())));
      left = left.subspan(parameter.size());
    }
  }
  return gradient_norm(sums);
}

}  // namespace

ReferenceRun train_reference(const Network& network, const Dataset& data, const OptimizerConfig& optimizer,
                             std::vector<std::vector<float>> parameters, int microbatches, int steps) {
  ReferenceRun run;
  MicrobatchRunner runner(network);
  std::vector<Floats> states;
  std::vector<std::vector<DecayRange>> ranges;
  const std::vector<ParameterSet> sets = network.sets();
  for (std::size_t s = 0; s < parameters.size(); ++s) {
    run.gradients.emplace_back(parameters[s].size());
    states.emplace_back(optimizer_state_size(optimizer, parameters[s].size()));
    ranges.push_back(decay_ranges(optimizer, sets[s].parameters));
  }
  for (int step = 0; step < steps; ++step) {
    for (Floats& sums : run.gradients) std::fill(sums.begin(), sums.end(), 0.0f);
    std::vector<Floats> weights;
    for (std::size_t s = 0; s < parameters.size(); ++s) {
      weights.push_back(rounded_weights(sets[s].precision, parameters[s]));
    }
    double loss = 0;
    for (int b = 0; b < microbatches; ++b) {
      loss += runner.forward(data, step, b, weights) / microbatches;
      runner.backward(1.0f / static_cast<float>(microbatches), weights, run.gradients);
    }
    run.losses.push_back(loss);
    run.norms.push_back(norm_of(network, run.gradients));
    Update update = {.number = step + 1,
                     .learning_rate = learning_rate(optimizer.schedule, optimizer.learning_rate, step),
                     .scale = clip_scale(optimizer.clip, run.norms.back()),
                     .ranges = {}};
    for (std::size_t s = 0; s < parameters.size(); ++s) {
      update.ranges = ranges[s];
      optimizer_step(optimizer, update, run.gradients[s], parameters[s], states[s]);
    }
  }
  run.parameters = std::move(parameters);
  return run;
}

}  // namespace starpipe::model
