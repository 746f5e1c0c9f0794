// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::model {

/// The results of a sequential run, to compare other runs with.
struct ReferenceRun {
  std::vector<double> losses;                  ///< [step]: mean over the micro-batches, before the update
  std::vector<double> norms;                   ///< [step]: of the whole gradient, before it is clipped
  std::vector<std::vector<float>> gradients;   ///< [set]: of the last step, before it is clipped; mean over
                                               ///< the micro-batches
  std::vector<std::vector<float>> parameters;  ///< [set]: after the last step
};

/// Trains on the calling thread, one micro-batch after the other, without StarPU and without a schedule. The
/// engine's tests compare their runs with it. `parameters`: start values, [set]. [set]: as Network::sets()
/// numbers them.
ReferenceRun train_reference(const Network& network, const Dataset& data, const OptimizerConfig& optimizer,
                             std::vector<std::vector<float>> parameters, int microbatches, int steps);

}  // namespace starpipe::model
