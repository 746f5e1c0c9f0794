// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe::model {

/// A regression task. Features are standard normal; targets are the outputs of a fixed random network, the
/// teacher, with one hidden layer of tanh. `model` has the keys `inputs` and `outputs`, and may have
/// `branches`. `samples`: of a micro-batch. `is_validation`: other samples, for the same teacher.
std::unique_ptr<Dataset> make_synthetic_dataset(const ModelConfig& model, int samples, std::uint64_t seed,
                                                bool is_validation);

}  // namespace starpipe::model
