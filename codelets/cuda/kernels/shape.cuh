// SPDX-License-Identifier: Apache-2.0
// The shape of attention's arrays, for the fp32 and the bf16 kernels.
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

namespace starpipe::model::cuda::attention {

/// Input: rows [q | k | v] of `columns` columns. Output: rows of `hidden` columns. `context` rows are a
/// sequence. q and the output have `heads` heads of `size` columns side by side. k and v have heads / group
/// heads; the query heads [g * group, (g + 1) * group) share head g of both.
struct Shape {
  int context;
  int heads;            ///< of q
  int group;            ///< query heads that share a head of k and v; divides `heads`
  int size;             ///< columns of a head
  float scale;          ///< of scores: 1 / sqrt(size)
  std::size_t columns;  ///< (heads + 2 * heads / group) * size
  std::size_t hidden;   ///< heads * size
  /// True if every row of every head begins at a multiple of 16 bytes in all arrays of the kernel, and has a
  /// multiple of 16 bytes. Only the bf16 kernels look at it.
  bool aligned = false;
};

/// Offsets of a sequence's query head in the arrays, in elements.
struct HeadOffsets {
  std::size_t q;       ///< in the sequence's first row of the input
  std::size_t k;       ///< the head of keys that the query head reads, in the same row
  std::size_t v;       ///< likewise of values
  std::size_t output;  ///< in the sequence's first row of the output
  std::size_t row;     ///< in arrays with one float per row and query head, laid out as [sequence][head][row]
};
/// `sequence_and_head`: sequence * heads + head.
__device__ inline HeadOffsets head_offsets(const Shape& shape, std::size_t sequence_and_head) {
  const auto heads = static_cast<std::size_t>(shape.heads);
  const auto group = static_cast<std::size_t>(shape.group);
  const auto context = static_cast<std::size_t>(shape.context);
  const auto size = static_cast<std::size_t>(shape.size);
  const std::size_t sequence = sequence_and_head / heads;
  const std::size_t head = sequence_and_head % heads;
  const std::size_t start = sequence * context * shape.columns;
  const std::size_t k = start + shape.hidden + head / group * size;
  return {start + head * size, k, k + heads / group * size, sequence * context * shape.hidden + head * size,
          sequence_and_head * context};
}

}  // namespace starpipe::model::cuda::attention
