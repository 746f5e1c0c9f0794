// SPDX-License-Identifier: Apache-2.0
// Computes a step anew, for `starpipe verify`: micro-batch by micro-batch, by the stages' passes,
// without a schedule and without the engine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe::model {

/// Returns |found - expected|. Infinity and NaN agree with each other: which of them a sum gives depends on
/// its order.
double difference(double found, double expected);

/// The losses of a step and its gradient, [set] as Network::sets() numbers them. Each micro-batch's gradient
/// starts from zeros, which exposes a W that overwrites the accumulator instead of adding to it.
/// Micro-batches are added in fp64.
struct ExpectedGradient {
  std::vector<double> losses;                   ///< by micro-batch
  std::vector<std::vector<double>> gradients;   ///< [set]: mean over the micro-batches
  std::vector<std::vector<double>> magnitudes;  ///< [set]: the mean of absolute values, the scale of rounding
  /// In step 0 only: the largest difference between two runs of the passes of one micro-batch. It is 0 unless
  /// a layer keeps state between passes.
  std::vector<double> repeated_losses = {};                  ///< by micro-batch
  std::vector<std::vector<double>> repeated_gradients = {};  ///< [set], scaled as `gradients`
};

/// Runs the micro-batches of step `step` (from 0) sequentially on the calling thread. `parameters`: fp32
/// values before the step. Passes run once more before the first micro-batch, and in step 0 twice for each:
/// so a layer that counts its calls is at another count than in the engine.
///
/// Runs the network without shards (whole_network), so a network in shards is compared with one that was
/// never cut.
ExpectedGradient expected_gradient(const Network& network, const Dataset& data, const SetValues& parameters,
                                   int microbatches, int step);

/// The derivative of the loss by one parameter along a direction, computed in two ways.
struct DerivativeCheck {
  int stage = 0;  ///< the first stage that uses the parameter
  std::string parameter;
  double passes = 0;       ///< from the gradient that the B and W passes give
  double differences = 0;  ///< from central differences of the loss, which F alone gives
  double error = 0;        ///< of `differences`, estimated
  double scale = 0;        ///< the size that the derivative along a random direction has
  /// True if the differences are exact enough to compare with.
  [[nodiscard]] bool is_decided() const { return error <= 0.25 * scale; }
  /// Returns the largest difference that counts as agreement.
  [[nodiscard]] double allowed() const { return 2 * error + 1e-3 * scale; }
  [[nodiscard]] bool agrees() const;
};

/// Checks the derivative of the mean loss of the first micro-batches of step 0 by each parameter, along two
/// directions: the parameter's own gradient, and a random one. Returns for each parameter the direction with
/// the larger difference relative to what is allowed. Passes run in fp32 on the calling thread: `network`
/// must have this precision. Each parameter takes 20 runs of F per micro-batch, and 10 more for each
/// derivative that does not agree at first. `begin`: called with the label of each parameter before its
/// check.
std::vector<DerivativeCheck> check_derivatives(
    const Network& network, const Dataset& data, const SetValues& parameters, int microbatches,
    const std::function<void(const std::string& parameter)>& begin = {});

}  // namespace starpipe::model
