// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe::model {

/// Takes one micro-batch after the other through the network, on the calling thread; all of them use the same
/// buffers. `weights`: [stage], as rounded_weights() makes them.
class MicrobatchRunner {
 public:
  /// The network must outlive this.
  explicit MicrobatchRunner(const Network& network);

  /// Runs F of all stages. Returns the mean loss of the micro-batch.
  double forward(const Dataset& data, int step, int microbatch,
                 const std::vector<std::vector<float>>& weights);

  /// Runs BW of all stages, after forward(). Adds `loss_scale` times the gradient of the mean loss to `sums`,
  /// [stage].
  void backward(float loss_scale, const std::vector<std::vector<float>>& weights,
                std::vector<std::vector<float>>& sums);

 private:
  [[nodiscard]] const Stage& at(int stage) const { return network_.stages[index(stage)]; }

  const Network& network_;
  std::vector<int> order_;  ///< of stages: predecessors first
  std::vector<std::vector<float>> inputs_;
  std::vector<std::vector<float>> outputs_;
  std::vector<std::vector<float>> stashes_;
  std::map<std::pair<int, int>, std::vector<float>> gradients_;  ///< of the edges (from, to) between stages
  std::vector<float> target_;
  std::vector<float> scratch_;
};

}  // namespace starpipe::model
