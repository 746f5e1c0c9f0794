// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "codelets/cuda/kernels/context.hpp"
#include "starpipe/model/memory_view.hpp"

namespace starpipe::model::cuda {

/// Backend::sum_squares() on a GPU, with the bits of the CPU: two kernels for up to 64 parts.
void sum_squares(const Context& on, std::span<const float> values, std::span<const std::size_t> sizes,
                 std::span<double> sums, Memory scratch) noexcept;

}  // namespace starpipe::model::cuda
