// SPDX-License-Identifier: Apache-2.0
#include "model/reference.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "starpipe/model/optimizer.hpp"

namespace starpipe::model {
namespace {

/// Returns the norm of the whole gradient.
double norm_of(const std::vector<ParameterSet>& sets, const SetValues& gradient) {
  std::vector<double> sums;
  for_each_parameter(sets, [&](const Parameter& parameter, std::size_t set, std::size_t first) {
    sums.push_back(sum_of_squares(std::span(gradient[set]).subspan(first, parameter.size())));
  });
  return gradient_norm(sums);
}

}  // namespace

ReferenceRun train_reference(const Network& network, const Dataset& data, const OptimizerConfig& optimizer,
                             SetValues parameters, int microbatches, int steps) {
  ReferenceRun run;
  MicrobatchRunner runner(network);
  SetValues states;
  std::vector<std::vector<DecayRange>> ranges;
  const std::vector<ParameterSet> sets = network.sets();
  for (std::size_t s = 0; s < parameters.size(); ++s) {
    run.gradients.emplace_back(parameters[s].size());
    states.emplace_back(optimizer_state_size(optimizer, parameters[s].size()));
    ranges.push_back(decay_ranges(optimizer, sets[s].parameters));
  }
  for (int step = 0; step < steps; ++step) {
    for (std::vector<float>& sums : run.gradients) std::ranges::fill(sums, 0.0f);
    SetValues weights;
    for (std::size_t s = 0; s < parameters.size(); ++s) {
      weights.push_back(rounded_weights(sets[s].precision, parameters[s]));
    }
    double loss = 0;
    for (int b = 0; b < microbatches; ++b) {
      loss += runner.forward(data, step, b, weights) / microbatches;
      runner.backward(1.0f / static_cast<float>(microbatches), weights, run.gradients);
    }
    run.losses.push_back(loss);
    run.norms.push_back(norm_of(sets, run.gradients));
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

MicrobatchRunner::MicrobatchRunner(const Network& network)
    : network_(network), order_(network.stages.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int a, int b) { return network.graph.depth(a) < network.graph.depth(b); });
  std::size_t scratch = 0;
  for (int s = 0; s < network.graph.size(); ++s) {
    const Stage& stage = at(s);
    shared_sets_.push_back(network.shared_sets(s));
    outputs_.emplace_back(stage.is_sink() ? 1 : stage.output_size());
    target_.resize(std::max(target_.size(), stage.rows() * stage.target_columns()));
    stashes_.emplace_back(stage.stash_size());
    const bool source = network.graph.pred(s).empty();
    inputs_.emplace_back(source ? stage.input_size(0) : 0);
    std::size_t i = 0;
    for (const int from : inputs_with_gradient(s)) gradients_[{from, s}].resize(stage.input_size(i++));
    scratch = std::max(scratch, stage.scratch_size());
  }
  scratch_.resize(scratch);
}

std::span<const int> MicrobatchRunner::inputs_with_gradient(int stage) const {
  const std::span<const int> all = network_.graph.pred(stage);
  return at(stage).adds_inputs() ? all.first(1) : all;
}

double MicrobatchRunner::forward(const Dataset& data, int step, int microbatch, const SetValues& weights) {
  data.target(step, microbatch, target_);
  for (const int s : order_) {
    std::vector<ConstMemory> inputs;
    if (network_.graph.pred(s).empty()) {
      load_input(data, at(s), step, microbatch, network_.source_index(s), inputs_[index(s)]);
      inputs.emplace_back(inputs_[index(s)]);
    }
    for (const int from : network_.graph.pred(s)) inputs.emplace_back(outputs_[index(from)]);
    const Stage& stage = at(s);
    std::vector<ConstMemory> shared;
    stage.forward(views(s, weights, shared), inputs,
                  stage.target_columns() > 0 ? ConstMemory(target_) : ConstMemory(), outputs_[index(s)],
                  stashes_[index(s)], scratch_);
  }
  return static_cast<double>(outputs_[index(network_.graph.sink())][0]);
}

void MicrobatchRunner::backward(float loss_scale, const SetValues& weights, SetValues& sums) {
  for (const int s : std::vector<int>(order_.rbegin(), order_.rend())) {
    std::vector<ConstMemory> in;
    for (const int to : network_.graph.succ(s)) {
      const int from = at(to).adds_inputs() ? network_.graph.pred(to).front() : s;
      in.emplace_back(gradients_[{from, to}]);
    }
    std::vector<Memory> out;
    for (const int from : inputs_with_gradient(s)) out.emplace_back(gradients_[{from, s}]);
    std::vector<ConstMemory> shared;
    std::vector<Memory> shared_sums;
    at(s).backward({.parameters = views(s, weights, shared),
                    .stash = stashes_[index(s)],
                    .output_gradients = in,
                    .loss_scale = loss_scale,
                    .input_gradients = out,
                    .parameter_gradient = views(s, sums, shared_sums),
                    .scratch = scratch_});
  }
}

}  // namespace starpipe::model
