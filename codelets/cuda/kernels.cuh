// SPDX-License-Identifier: Apache-2.0
// What several kernels are made of. Elements are stored as T and computed with in float.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "codelets/cuda/arithmetic.hpp"
#include "codelets/cuda/context.hpp"
#include "codelets/cuda/element.hpp"
#include "codelets/cuda/launch.cuh"

namespace starpipe::model::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr unsigned kThreads = 256;  ///< of a block, where nothing asks for another number

// Over the lanes of a whole warp, in an order that is fixed; every lane gets the result.
__device__ inline float warp_sum(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}
__device__ inline float warp_max(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

/// function(i) for each i < count, in a thread each.
template <class Function>
__global__ void each(std::size_t count, Function function) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) function(i);
}
template <class Function>
void for_each(const Context& on, const char* name, std::size_t count, Function function) noexcept {
  if (count == 0) return;
  const dim3 blocks(static_cast<unsigned>(parts(count, kThreads)));
  launch(on, name, {blocks, dim3(kThreads)}, each<Function>, count, function);
}

// Sums over rows, of each column, in two steps whose order is fixed: each block sums a share of the rows,
// then the shares are added in turn.

inline constexpr std::size_t kMostShares = 64;  ///< of the rows; what sum_rows needs scratch for
inline constexpr unsigned kRowsAtOnce = 8;

/// Floats of scratch that sum_rows needs.
constexpr std::size_t sum_rows_scratch(std::size_t columns) { return kMostShares * columns; }

/// shares[blockIdx.y][column] = sum of term(row, column) over the block's share of the rows.
template <class Term>
__global__ void sum_shares(std::size_t rows, std::size_t columns, std::size_t rows_each, Term term,
                           float* shares) {
  __shared__ float sums[kRowsAtOnce][kWarp];
  const std::size_t column = std::size_t{blockIdx.x} * kWarp + threadIdx.x;
  const std::size_t first = std::size_t{blockIdx.y} * rows_each;
  const std::size_t last = first + rows_each < rows ? first + rows_each : rows;
  float sum = 0;
  if (column < columns) {
    for (std::size_t row = first + threadIdx.y; row < last; row += kRowsAtOnce) sum += term(row, column);
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  float total = 0;
  for (unsigned y = 0; y < kRowsAtOnce; ++y) total += sums[y][threadIdx.x];
  shares[blockIdx.y * columns + column] = total;
}

template <class T>
__global__ void add_shares(std::size_t shares, std::size_t columns, const T* partial, T* sums) {
  const std::size_t column = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  T total = 0;
  for (std::size_t s = 0; s < shares; ++s) total += partial[s * columns + column];
  sums[column] += total;
}

/// sums[column] += sum over the rows of term(row, column). `scratch`: sum_rows_scratch(columns) floats.
template <class Term>
void sum_rows(const Context& on, const char* name, std::size_t rows, std::size_t columns, Term term,
              float* sums, std::span<float> scratch) noexcept {
  constexpr std::size_t kWorthAShare = 64;  // rows
  const std::size_t rows_each = parts(rows, std::min(kMostShares, parts(rows, kWorthAShare)));
  const std::size_t shares = parts(rows, rows_each);
  const dim3 blocks(static_cast<unsigned>(parts(columns, kWarp)), static_cast<unsigned>(shares));
  launch(on, name, {blocks, dim3(kWarp, kRowsAtOnce)}, sum_shares<Term>, rows, columns, rows_each, term,
         scratch.data());
  const dim3 adders(static_cast<unsigned>(parts(columns, kThreads)));
  launch(on, name, {adders, dim3(kThreads)}, add_shares<float>, shares, columns, scratch.data(), sums);
}

}  // namespace starpipe::model::cuda
