// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::model {

/// The results of a sequential run, to compare other runs with.
struct ReferenceRun {
  std::vector<double> losses;  ///< [step]: mean over the micro-batches, before the update
  std::vector<double> norms;   ///< [step]: of the whole gradient, before it is clipped
  SetValues gradients;         ///< of the last step, before it is clipped; mean over the micro-batches
  SetValues parameters;        ///< after the last step
};

/// Trains sequentially on the calling thread, without StarPU and without a schedule. The engine's tests
/// compare their runs with it. `parameters`: start values.
ReferenceRun train_reference(const Network& network, const Dataset& data, const OptimizerConfig& optimizer,
                             SetValues parameters, int microbatches, int steps);

/// Takes micro-batches through the network sequentially, on the calling thread and in the same buffers.
/// `weights`: as rounded_weights() makes them, by set.
class MicrobatchRunner {
 public:
  /// The network must outlive this.
  explicit MicrobatchRunner(const Network& network);

  /// Runs F of all stages. Returns the mean loss of the micro-batch.
  double forward(const Dataset& data, int step, int microbatch, const SetValues& weights);

  /// Runs BW of all stages, after forward(). Adds `loss_scale` times the gradient of the mean loss to `sums`.
  void backward(float loss_scale, const SetValues& weights, SetValues& sums);

 private:
  [[nodiscard]] const Stage& at(int stage) const { return network_.stages[index(stage)]; }
  /// Returns the preceding stages for which the stage computes a gradient each: the first one alone when it
  /// adds its inputs, whose gradients are then the same.
  [[nodiscard]] std::span<const int> inputs_with_gradient(int stage) const;

  template <class View, class Array>
  [[nodiscard]] ParameterViews<View> views(int stage, Array& arrays, std::vector<View>& shared) const {
    shared.clear();
    for (const std::size_t set : shared_sets_[index(stage)]) shared.emplace_back(arrays[set]);
    return {View(arrays[index(stage)]), shared};
  }

  const Network& network_;
  std::vector<std::vector<std::size_t>> shared_sets_;  ///< by stage
  std::vector<int> order_;                             ///< of stages: predecessors first
  // By stage.
  std::vector<std::vector<float>> inputs_;
  std::vector<std::vector<float>> outputs_;
  std::vector<std::vector<float>> stashes_;
  std::map<std::pair<int, int>, std::vector<float>> gradients_;  ///< of the edges (from, to) between stages
  std::vector<float> target_;
  std::vector<float> scratch_;
};

}  // namespace starpipe::model
