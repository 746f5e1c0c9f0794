// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/reference.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "starpipe/base/index.hpp"
#include "starpipe/model/gradient_norm.hpp"

namespace starpipe::model {
namespace {

using Floats = std::vector<float>;

/// Takes one micro-batch after the other through the network; all of them use the same buffers.
class MicrobatchRunner {
 public:
  explicit MicrobatchRunner(const Network& network) : network_(network), order_(network.stages.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int a, int b) { return network.graph.depth(a) < network.graph.depth(b); });
    std::size_t scratch = 0;
    for (int s = 0; s < network.graph.size(); ++s) {
      const Stage& stage = at(s);
      outputs_.emplace_back(stage.is_sink() ? 1 : stage.output_size());
      stashes_.emplace_back(stage.stash_size());
      const bool source = network.graph.pred(s).empty();
      inputs_.emplace_back(source ? stage.input_size(0) : 0);
      std::size_t i = 0;
      for (const int from : network.graph.pred(s)) {
        gradients_[{from, s}].resize(stage.input_size(i++));
      }
      scratch = std::max(scratch, stage.scratch_size());
    }
    const Stage& sink = at(network.graph.sink());
    target_.resize(sink.rows() * sink.target_columns());
    scratch_.resize(scratch);
  }

  /// Runs F of all stages. Returns the mean loss of the micro-batch.
  double forward(const Dataset& data, int step, int microbatch, const std::vector<Floats>& weights) {
    data.target(step, microbatch, target_);
    for (const int s : order_) {
      std::vector<ConstMemory> inputs;
      if (network_.graph.pred(s).empty()) {
        load_input(data, at(s), step, microbatch, network_.source_index(s), inputs_[index(s)]);
        inputs.emplace_back(inputs_[index(s)]);
      }
      for (const int from : network_.graph.pred(s)) inputs.emplace_back(outputs_[index(from)]);
      const Stage& stage = at(s);
      stage.forward(weights[index(s)], inputs, stage.is_sink() ? target_ : Floats{}, outputs_[index(s)],
                    stashes_[index(s)], scratch_);
    }
    return static_cast<double>(outputs_[index(network_.graph.sink())][0]);
  }

  /// Runs BW of all stages. Adds `loss_scale` times the gradient of the mean loss to `sums`, [stage].
  void backward(float loss_scale, const std::vector<Floats>& weights, std::vector<Floats>& sums) {
    for (auto at_stage = order_.rbegin(); at_stage != order_.rend(); ++at_stage) {
      const int s = *at_stage;
      std::vector<ConstMemory> in;
      for (const int to : network_.graph.succ(s)) in.emplace_back(gradients_[{s, to}]);
      std::vector<Memory> out;
      for (const int from : network_.graph.pred(s)) out.emplace_back(gradients_[{from, s}]);
      at(s).backward(weights[index(s)], stashes_[index(s)], in, loss_scale, out, sums[index(s)], scratch_);
    }
  }

 private:
  const Stage& at(int stage) const { return network_.stages[index(stage)]; }

  const Network& network_;
  std::vector<int> order_;  ///< of stages: predecessors first
  std::vector<Floats> inputs_;
  std::vector<Floats> outputs_;
  std::vector<Floats> stashes_;
  std::map<std::pair<int, int>, Floats> gradients_;  ///< of the edges (from, to) between stages
  Floats target_;
  Floats scratch_;
};

/// The norm of the whole gradient, [stage].
double norm_of(const Network& network, const std::vector<Floats>& gradients) {
  std::vector<double> sums;
  for (std::size_t s = 0; s < gradients.size(); ++s) {
    std::span<const float> left = gradients[s];
    for (const Parameter& parameter : network.stages[s].parameters()) {
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
  for (std::size_t s = 0; s < parameters.size(); ++s) {
    run.gradients.emplace_back(parameters[s].size());
    states.emplace_back(optimizer_state_size(optimizer, parameters[s].size()));
    ranges.push_back(decay_ranges(optimizer, network.stages[s].parameters()));
  }
  for (int step = 0; step < steps; ++step) {
    for (Floats& sums : run.gradients) std::fill(sums.begin(), sums.end(), 0.0f);
    std::vector<Floats> weights;
    for (std::size_t s = 0; s < parameters.size(); ++s) {
      weights.push_back(rounded_weights(network.stages[s], parameters[s]));
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
