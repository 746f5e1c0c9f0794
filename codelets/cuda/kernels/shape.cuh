// SPDX-License-Identifier: Apache-2.0
// The shape of attention's arrays, for the fp32 and the bf16 kernels.
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

namespace starpipe::model::cuda::attention {

__device__ inline int smaller(int a, int b) { return a < b ? a : b; }
__device__ inline int larger(int a, int b) { return a < b ? b : a; }

/// A row-major matrix, whose heads lie side by side in each row from its first column on.
template <class T>
struct Rows {
  T* first;
  std::size_t columns;  ///< elements from row to row
};

/// Each sequence has `queries` rows of q and of the output, and `keys` rows of [k | v]. The last query sees
/// all keys, and the one before it sees one less. So a layer of whole sequences has as many queries as keys,
/// and a layer of a slice also has the keys of the slices before. q and the output have `heads` heads of
/// `size` columns. k and v have heads / group heads; the query heads [g * group, (g + 1) * group) share head
/// g of both.
struct Shape {
  int queries;
  int keys;
  int heads;           ///< of q
  int group;           ///< query heads that share a head of k and v; divides `heads`
  int size;            ///< columns of a head
  float scale;         ///< of scores: 1 / sqrt(size)
  std::size_t hidden;  ///< heads * size: columns of the output
  /// True if every row of every head begins at a multiple of 16 bytes in all arrays of the kernel, and has a
  /// multiple of 16 bytes. Only the bf16 kernels look at it.
  bool aligned = false;

  /// Returns the position of the first query, which is the number of keys before its own.
  __device__ int first_position() const { return keys - queries; }
};

/// Finds a query head of a sequence in the arrays. `k` and `v` are the heads of keys and values that it
/// reads.
struct HeadPlace {
  const Shape& shape;
  std::size_t sequence_and_head;  ///< sequence * heads + head

  __device__ std::size_t sequence() const {
    return sequence_and_head / static_cast<std::size_t>(shape.heads);
  }
  __device__ std::size_t head() const { return sequence_and_head % static_cast<std::size_t>(shape.heads); }

  // Each returns the head's first element in the sequence's first row of a matrix.
  template <class T>
  __device__ T* q(Rows<T> rows) const {
    return rows.first + sequence() * static_cast<std::size_t>(shape.queries) * rows.columns +
           head() * static_cast<std::size_t>(shape.size);
  }
  template <class T>
  __device__ T* k(Rows<T> rows) const {
    return rows.first + sequence() * static_cast<std::size_t>(shape.keys) * rows.columns +
           head() / static_cast<std::size_t>(shape.group) * static_cast<std::size_t>(shape.size);
  }
  template <class T>
  __device__ T* v(Rows<T> rows) const {
    return k(rows) + static_cast<std::size_t>(shape.heads / shape.group * shape.size);
  }
  /// Does so for the output, or its gradient.
  template <class T>
  __device__ T* y(T* rows) const {
    return q(Rows<T>{rows, shape.hidden});
  }
  /// Returns the place of the first query in arrays of one float per row and query head,
  /// [sequence][head][row].
  __device__ std::size_t row() const { return sequence_and_head * static_cast<std::size_t>(shape.queries); }
};

}  // namespace starpipe::model::cuda::attention
