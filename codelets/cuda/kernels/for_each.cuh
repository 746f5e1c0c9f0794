// SPDX-License-Identifier: Apache-2.0
// What several kernels are made of. Elements are stored as T and computed with in float.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "codelets/cuda/device/context.hpp"
#include "codelets/cuda/device/launch.cuh"
#include "codelets/cuda/kernels/arithmetic.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/packs.cuh"

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

/// Of packs of `count` elements; the last one may not be full.
template <int N, class Function>
struct EachPack {
  std::size_t count;
  Function function;
  __device__ void operator()(std::size_t pack) const {
    std::size_t i = pack * N;
    if (i + N <= count) {
      function.template run<N>(i);
    } else {
      for (; i < count; ++i) function.template run<1>(i);
    }
  }
};

/// Function{arguments...}.run<size>(i), which does `size` elements from the i-th on, for all of `count`.
/// `size` is N, a whole pack of the smallest type; but 1 in the last pack when it is not full, and everywhere
/// when one of the arrays among the arguments does not begin a pack.
template <class Function, int N, class... Arguments>
void for_each_pack(const Context& on, const char* name, std::size_t count,
                   const Arguments&... arguments) noexcept {
  with_packs<N>(begin_packs(arguments...), [&](auto size) {
    for_each(on, name, parts(count, size), EachPack<size, Function>{count, {arguments...}});
  });
}

/// use(load(i)) of first, first + step, ... < last in turn. kInFlight loads, a power of two, come before the
/// first use and depend on no condition, so that all are on their way at a time; of the rest half as many,
/// and so on.
template <int kInFlight, class Load, class Use>
__device__ void each_loaded(std::size_t first, std::size_t last, std::size_t step, Load load, Use use) {
#pragma unroll 1
  for (; first + (kInFlight - 1) * step < last; first += kInFlight * step) {
    decltype(load(first)) loaded[kInFlight];
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i) loaded[i] = load(first + i * step);
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i) use(loaded[i]);
  }
  if constexpr (kInFlight > 1) each_loaded<kInFlight / 2>(first, last, step, load, use);
}

// Sums over rows, of each column, in two steps whose order is fixed: each block sums a share of the rows,
// then the shares are summed in the same way.

inline constexpr std::size_t kMostShares = 128;  ///< of the rows; what sum_rows needs scratch for
inline constexpr unsigned kRowsAtOnce = 8;

/// Floats of scratch that sum_rows needs for so many sums.
constexpr std::size_t sum_rows_scratch(std::size_t sums) { return kMostShares * sums; }

/// The terms of the sums of a matrix's columns.
template <class T>
struct Elements {
  static constexpr int kSums = 1;  ///< of each column
  static constexpr int kPack = cuda::kPack<T>;
  const T* values;
  [[nodiscard]] bool begin_packs() const { return cuda::begin_packs(values); }
  /// What N columns' terms in a row are made of, which begins with the matrix's i-th element.
  template <int N>
  __device__ Pack<T, N> load(std::size_t i) const {
    return load_pack<N>(values + i);
  }
  template <int N>
  __device__ static void add(const Pack<T, N>& loaded, Values<N> (&sums)[kSums]) {
    const Values<N> x = floats(loaded);
    for (int k = 0; k < N; ++k) sums[0][k] += x[k];
  }
};

/// Of block y's share of the rows: sums[y][s][column], or added to sums[s][column] when there is one share.
template <class Terms, int N>
__global__ void sum_shares(std::size_t rows, std::size_t columns, std::size_t rows_each, Terms terms,
                           float* sums) {
  constexpr unsigned kColumns = kWarp * N;
  __shared__ float of_rows[kRowsAtOnce][Terms::kSums][kColumns];
  const std::size_t start = std::size_t{blockIdx.x} * kColumns;
  const unsigned own = threadIdx.x * N;
  const std::size_t first = blockIdx.y * rows_each;
  const std::size_t last = first + rows_each < rows ? first + rows_each : rows;
  Values<N> own_sums[Terms::kSums] = {};
  if (start + own < columns) {
    each_loaded<4>(
        first + threadIdx.y, last, blockDim.y,
        [&](std::size_t row) { return terms.template load<N>(row * columns + start + own); },
        [&](const auto& loaded) { terms.add(loaded, own_sums); });
  }
  for (int s = 0; s < Terms::kSums; ++s) {
    for (int k = 0; k < N; ++k) of_rows[threadIdx.y][s][own + static_cast<unsigned>(k)] = own_sums[s][k];
  }
  __syncthreads();
  for (unsigned i = threadIdx.y * kWarp + threadIdx.x; i < Terms::kSums * kColumns; i += kWarp * blockDim.y) {
    const std::size_t s = i / kColumns;
    const std::size_t column = start + i % kColumns;
    if (column >= columns) continue;
    float total = 0;
    for (unsigned y = 0; y < blockDim.y; ++y) total += of_rows[y][s][i % kColumns];
    float* const sum = sums + (blockIdx.y * Terms::kSums + s) * columns + column;
    *sum = gridDim.y == 1 ? *sum + total : total;
  }
}

/// sums[s][column] += sum over the rows of terms. `scratch`: sum_rows_scratch() floats of all sums; without,
/// rows should be few or columns many, as one block then goes through all rows.
template <class Terms>
void sum_rows(const Context& on, const char* name, std::size_t rows, std::size_t columns, const Terms& terms,
              float* sums, std::span<float> scratch) noexcept {
  constexpr std::size_t kWorthAShare = 64;  // rows
  const std::size_t most = scratch.empty() ? 1 : std::min(kMostShares, parts(rows, kWorthAShare));
  const std::size_t rows_each = parts(rows, most);
  const std::size_t shares = parts(rows, rows_each);
  with_packs<Terms::kPack>(columns % Terms::kPack == 0 && terms.begin_packs(), [&](auto size) {
    const dim3 blocks(static_cast<unsigned>(parts(columns, kWarp * size)), static_cast<unsigned>(shares));
    const dim3 threads(kWarp, static_cast<unsigned>(std::min<std::size_t>(kRowsAtOnce, rows_each)));
    launch(on, name, {blocks, threads}, sum_shares<Terms, size>, rows, columns, rows_each, terms,
           shares == 1 ? sums : scratch.data());
  });
  if (shares == 1) return;
  const std::size_t all = Terms::kSums * columns;
  launch(on, name, {dim3(static_cast<unsigned>(parts(all, kWarp))), dim3(kWarp, kRowsAtOnce)},
         sum_shares<Elements<float>, 1>, shares, all, shares, Elements<float>{scratch.data()}, sums);
}

}  // namespace starpipe::model::cuda
