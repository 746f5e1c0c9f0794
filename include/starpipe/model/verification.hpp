// SPDX-License-Identifier: Apache-2.0
// What a step must have computed: the other side of `starpipe verify`. It knows the passes of stages, and
// neither schedules nor the engine.
#pragma once

#include <string>
#include <vector>

#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe::model {

/// The losses of a step and its gradient. Each micro-batch's gradient starts from zeros, and the
/// micro-batches are added up in fp64: so it has no order of additions, and does not rely on W to add to what
/// is there.
struct ExpectedGradient {
  std::vector<double> losses;                   ///< by micro-batch
  std::vector<std::vector<double>> gradients;   ///< [stage]: mean over the micro-batches
  std::vector<std::vector<double>> magnitudes;  ///< [stage]: the same of absolute values; scales for rounding
};

/// Runs the step's micro-batches one after the other on the calling thread. `parameters`: before the step,
/// [stage].
ExpectedGradient expected_gradient(const Network& network, const Dataset& data,
                                   const std::vector<std::vector<float>>& parameters, int microbatches,
                                   int step);

/// The derivative of the loss by one parameter along a direction, in two ways.
struct DerivativeCheck {
  int stage = 0;
  std::string parameter;
  double passes = 0;       ///< from the gradient that the B and W passes give
  double differences = 0;  ///< from central differences of the loss, which F alone gives
  double error = 0;        ///< of `differences`, estimated
  double scale = 0;        ///< the size that the derivative along a random direction has
  /// Whether the differences are exact enough to say anything.
  [[nodiscard]] bool is_decided() const { return error <= 0.25 * scale; }
  [[nodiscard]] double allowed() const { return 2 * error + 1e-3 * scale; }
  [[nodiscard]] bool agrees() const;
};

/// Checks the derivatives of the loss of micro-batch 0 of step 0 by each parameter: along the parameter's own
/// gradient, and along a random direction; of the two, the check that says more against the gradient. Passes
/// run in fp32 on the calling thread: `network` must be of that precision. Each parameter takes 20 runs of F.
std::vector<DerivativeCheck> check_derivatives(const Network& network, const Dataset& data,
                                               const std::vector<std::vector<float>>& parameters);

}  // namespace starpipe::model
