// SPDX-License-Identifier: Apache-2.0
// Sums of a matrix's columns, in two steps with a fixed order: each block sums a share of the rows, then the
// shares are summed in the same way. So two runs are bitwise equal, which atomic additions would not give.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "codelets/cuda/kernels/launch.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/base/index.hpp"

namespace starpipe::model::cuda {

inline constexpr std::size_t max_shares = 128;  ///< largest number of shares of the rows
inline constexpr unsigned rows_at_once = 8;     ///< rows that a block reads at a time, one a warp

/// Floats of scratch that add_column_sums() needs for `sums` sums (sums per column times columns).
constexpr std::size_t column_sums_scratch(std::size_t sums) { return max_shares * sums; }

/// Terms for add_column_sums(): a column's sum is the sum of a matrix's elements. Other classes of terms may
/// have several sums per column, and load them from several matrices.
template <class T>
struct Elements {
  static constexpr int sums_per_column = 1;
  static constexpr int pack_size = cuda::pack_size<T>;
  const T* values;  ///< row-major
  [[nodiscard]] bool pack_aligned() const { return cuda::pack_aligned(values); }
  /// Loads the N neighbouring elements of a row that begin with the matrix's i-th element.
  template <int N>
  __device__ Pack<T, N> load(std::size_t i) const {
    return load_pack<N>(values + i);
  }
  /// Computes the terms of N columns of a row from what load() returned, and adds them to sums[sum][column].
  template <int N>
  __device__ static void add(const Pack<T, N>& loaded, Values<N> (&sums)[sums_per_column]) {
    const Values<N> x = floats(loaded);
    for (int k = 0; k < N; ++k) sums[0][k] += x[k];
  }
};

/// Block (x, y) sums its share y of the rows, [rows_each * y, rows_each * (y + 1)), for 32 * N columns. It
/// writes sums[y][s][column] for each sum s; when there is one share only, it adds to sums[s][column]
/// instead. Threads (x, y): lane x of a warp has N neighbouring columns, warp y takes every blockDim.y-th
/// row.
template <class Terms, int N>
__global__ void sum_shares(std::size_t rows, std::size_t columns, std::size_t rows_each, Terms terms,
                           float* sums) {
  constexpr unsigned block_columns = warp_size * N;
  __shared__ float of_warps[rows_at_once][Terms::sums_per_column][block_columns];
  const std::size_t start = std::size_t{blockIdx.x} * block_columns;
  const unsigned own = threadIdx.x * N;
  const std::size_t first = blockIdx.y * rows_each;
  const std::size_t last = first + rows_each < rows ? first + rows_each : rows;
  Values<N> own_sums[Terms::sums_per_column] = {};
  if (start + own < columns) {
    each_loaded<4>(
        first + threadIdx.y, last, blockDim.y,
        [&](std::size_t row) { return terms.template load<N>(row * columns + start + own); },
        [&](const auto& loaded) { terms.add(loaded, own_sums); });
  }
  for (int s = 0; s < Terms::sums_per_column; ++s) {
    for (int k = 0; k < N; ++k) of_warps[threadIdx.y][s][own + static_cast<unsigned>(k)] = own_sums[s][k];
  }
  __syncthreads();
  for (unsigned i = threadIdx.y * warp_size + threadIdx.x; i < Terms::sums_per_column * block_columns;
       i += warp_size * blockDim.y) {
    const std::size_t s = i / block_columns;
    const std::size_t column = start + i % block_columns;
    if (column >= columns) continue;
    float total = 0;
    for (unsigned y = 0; y < blockDim.y; ++y) total += of_warps[y][s][i % block_columns];
    float* const sum = sums + (blockIdx.y * Terms::sums_per_column + s) * columns + column;
    *sum = gridDim.y == 1 ? *sum + total : total;
  }
}

/// sums[s][column] += the sum of the column's terms over all rows, for each of the terms' sums s. `scratch`:
/// column_sums_scratch() floats, or empty. Without scratch one block reads all rows of its columns, which is
/// fast only where rows are few or columns many.
template <class Terms>
void add_column_sums(const Context& on, const char* name, std::size_t rows, std::size_t columns,
                     const Terms& terms, float* sums, FloatView scratch) noexcept {
  constexpr std::size_t min_rows = 64;  // a smaller share is not worth a block
  const std::size_t max = scratch.empty() ? 1 : std::min(max_shares, ceil_div(rows, min_rows));
  const std::size_t rows_each = ceil_div(rows, max);
  const std::size_t shares = ceil_div(rows, rows_each);
  with_pack_size<Terms::pack_size>(columns % Terms::pack_size == 0 && terms.pack_aligned(), [&](auto size) {
    const dim3 blocks(static_cast<unsigned>(ceil_div(columns, warp_size * size)),
                      static_cast<unsigned>(shares));
    const dim3 threads(warp_size, static_cast<unsigned>(std::min<std::size_t>(rows_at_once, rows_each)));
    launch(on, name, {blocks, threads}, sum_shares<Terms, size>, rows, columns, rows_each, terms,
           shares == 1 ? sums : scratch.data());
  });
  if (shares == 1) return;
  const std::size_t all = Terms::sums_per_column * columns;
  launch(on, name, {dim3(static_cast<unsigned>(ceil_div(all, warp_size))), dim3(warp_size, rows_at_once)},
         sum_shares<Elements<float>, 1>, shares, all, shares, Elements<float>{scratch.data()}, sums);
}

}  // namespace starpipe::model::cuda
