// SPDX-License-Identifier: Apache-2.0
// The passes of a bf16 layer on the calling thread: its fp32 passes on arrays that are widened to floats
// before, and rounded (to nearest, ties to even) after. Arguments are those of Backend's functions.
#pragma once

#include "starpipe/model/layer.hpp"

namespace starpipe::model::bf16 {

void forward(const Layer& layer, ConstMemory parameters, ConstMemory input, Memory output, Memory stash,
             Memory scratch) noexcept;
void backward_input(const Layer& layer, ConstMemory parameters, ConstMemory stash,
                    ConstMemory output_gradient, Memory input_gradient, Memory scratch) noexcept;
void backward_weights(const Layer& layer, ConstMemory stash, ConstMemory output_gradient,
                      std::span<float> parameter_gradient, Memory scratch) noexcept;
/// Returns the mean loss.
float forward(const Loss& loss, ConstMemory input, std::span<const float> target, Memory stash,
              Memory scratch) noexcept;
void backward_input(const Loss& loss, ConstMemory stash, float scale, Memory input_gradient,
                    Memory scratch) noexcept;
/// sum = a + b for all bf16 that `sum` holds, padding included.
void add(ConstMemory a, ConstMemory b, Memory sum) noexcept;

}  // namespace starpipe::model::bf16
