// SPDX-License-Identifier: Apache-2.0
// The norm of a model's gradient, and clipping by it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace starpipe::model {

/// The order of the additions of sum_of_squares(), which is also that of a GPU's kernels. A parameter is cut
/// into chunks of `norm_chunk` numbers. In each chunk, lane l of 32 adds up the numbers l, l + 32, ...; then
/// the lanes' sums are added in a tree, l and l + 16 first. The chunks' sums are added in the same way.
inline constexpr std::size_t norm_lanes = 32;
inline constexpr std::size_t norm_chunk = 4096;

/// The sum of the squares of one parameter's gradient. It is computed in fp64, where squares of floats are
/// exact and do not overflow, and in an order that depends on the number of values alone. So its bits depend
/// on no schedule, partition, rank or device. Thread-safe; does not allocate or throw.
double sum_of_squares(std::span<const float> values) noexcept;

/// Words of 4 bytes of scratch in which a GPU adds up the squares of parameters of these sizes: a double for
/// each parameter and each of its chunks.
std::size_t norm_scratch_words(std::span<const std::size_t> sizes);

/// The norm of a gradient, from the sums of squares of all parameters in the model's order. NaN or infinity
/// when, and only when, the gradient has such a value.
double gradient_norm(std::span<const double> sums) noexcept;

/// The factor of clipping, that of torch.nn.utils.clip_grad_norm_: min(1, clip / (norm + 1e-6)), rounded to a
/// float; NaN when the norm is NaN. 1 without `clip`.
float clip_scale(std::optional<double> clip, double norm) noexcept;

}  // namespace starpipe::model
