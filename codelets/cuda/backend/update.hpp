// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "codelets/cuda/kernels/context.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::model::cuda {

/// model::optimizer_step() on a GPU: one kernel for each range.
void update(const Context& on, const OptimizerConfig& config, const Update& update,
            std::span<const float> gradient, std::span<float> parameters, std::span<float> state) noexcept;

}  // namespace starpipe::model::cuda
