// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/model/optimizer.hpp"

namespace starpipe {

/// Keeps no state.
inline const model::OptimizerConfig plain_sgd = {.kind = "sgd", .learning_rate = 0.01};
/// With momentum and weight decay.
inline const model::OptimizerConfig sgd = {
    .kind = "sgd", .learning_rate = 0.1, .weight_decay = 0.01, .momentum = 0.9};
inline const model::OptimizerConfig adamw = {.kind = "adamw", .learning_rate = 0.01};

}  // namespace starpipe
