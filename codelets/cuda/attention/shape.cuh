// SPDX-License-Identifier: Apache-2.0
// The shape of attention's arrays, for the fp32 and the bf16 kernels.
#pragma once

#include <cstddef>

#include "codelets/cuda/kernels/arithmetic.hpp"

namespace starpipe::model::cuda::attention {

/// Input: rows [q | k | v] of 3 * hidden columns. Output: rows of hidden columns. `context` rows are a
/// sequence; head h has the columns [h * size, (h + 1) * size) of each of q, k, v and the output.
struct Shape {
  int context;
  int heads;
  int size;            ///< columns of a head
  float scale;         ///< of scores: 1 / sqrt(size)
  std::size_t hidden;  ///< heads * size
};

/// Where a sequence's head begins in the arrays, counted in elements.
struct HeadOffsets {
  std::size_t qkv;  ///< the head's q in the sequence's first row; k is `hidden` and v 2 * `hidden` behind it
  std::size_t output;  ///< the head in the sequence's first row of the output
  std::size_t row;     ///< in arrays with one float a row and head, laid out as [sequence][head][row]
};
/// `sequence_and_head`: sequence * heads + head.
STARPIPE_HOST_DEVICE inline HeadOffsets head_offsets(const Shape& shape, std::size_t sequence_and_head) {
  const auto heads = static_cast<std::size_t>(shape.heads);
  const auto context = static_cast<std::size_t>(shape.context);
  const std::size_t sequence = sequence_and_head / heads;
  const std::size_t column = sequence_and_head % heads * static_cast<std::size_t>(shape.size);
  return {sequence * context * 3 * shape.hidden + column, sequence * context * shape.hidden + column,
          sequence_and_head * context};
}

}  // namespace starpipe::model::cuda::attention
