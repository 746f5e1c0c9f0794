// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>

#include "codelets/cpu/math.hpp"
#include "model/bf16.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model::cpu {

/// Queries whose scores are computed together. Blocks bound the scratch, and a block computes few scores of
/// keys later than its last query: in fp32 none.
inline constexpr std::size_t query_block = 64;

/// Computes with rows of products of a query with keys. Scores are `scale` times the products.
struct AttentionScores {
  float scale = 1;

  /// Replaces the first `seen` of a row's `keys` products of query and key by the softmax of their scores,
  /// and the masked rest by 0. Returns the log-sum-exp of the first `seen` scores.
  float softmax(float* row, std::size_t seen, std::size_t keys) const noexcept {
    const float by = scale;  // a local constant: for the compiler, a row may alias the member
    const float top = by * max_of(row, seen);
    for (std::size_t j = 0; j < seen; ++j) row[j] = exp_of(by * row[j] - top);
    const float sum = sum_of(seen, [row](std::size_t j) { return row[j]; });
    const float share = 1.0f / sum;
    for (std::size_t j = 0; j < seen; ++j) row[j] *= share;
    std::fill(row + seen, row + keys, 0.0f);
    return top + std::log(sum);
  }

  /// Replaces a row's products of query and key by the softmax, from the log-sum-exp that F has kept.
  void softmax_again(float* row, std::size_t seen, std::size_t keys, float log_sum) const noexcept {
    const float by = scale;
    for (std::size_t j = 0; j < seen; ++j) row[j] = exp_of(by * row[j] - log_sum);
    std::fill(row + seen, row + keys, 0.0f);
  }

  /// Replaces the gradient of a row's probabilities p by the gradient of its products of query and key.
  void differentiate(const float* p, float* gradient, std::size_t seen, std::size_t keys) const noexcept {
    const float mean = sum_of(seen, [=](std::size_t j) { return p[j] * gradient[j]; });
    const float by = scale;
    for (std::size_t j = 0; j < keys; ++j) gradient[j] = by * p[j] * (gradient[j] - mean);
  }
};

/// Makes the layer "attention" of a slice of the context (sequence_rows). It also sees the keys and values of
/// the slices before. F copies its own keys and values to Forward::own_keys_values, as rows [k | v]. So the
/// stash has only q, and one log-sum-exp per row and head. Throws as make_layer() does.
std::unique_ptr<Layer> make_sliced_attention(const LayerSpec& spec);

/// Rounds `count` floats to bf16, to nearest.
inline void round_row(const float* __restrict from, std::size_t count, Bf16* __restrict to) noexcept {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

}  // namespace starpipe::model::cpu
