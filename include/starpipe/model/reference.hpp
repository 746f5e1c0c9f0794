// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::model {

/// What a sequential run gives to compare others with.
struct ReferenceRun {
  std::vector<double> losses;                  ///< by step: mean over the micro-batches, before the update
  std::vector<std::vector<float>> gradients;   ///< by stage: of the last step, mean over micro-batches
  std::vector<std::vector<float>> parameters;  ///< by stage: after the last step
};

/// Trains on one thread, micro-batch by micro-batch, with no StarPU and no schedule: the oracle of the
/// engine's tests. `parameters`: start values by stage.
ReferenceRun train_reference(const Network& network, const Dataset& data, const OptimizerConfig& optimizer,
                             std::vector<std::vector<float>> parameters, int microbatches, int steps);

}  // namespace starpipe::model
