// SPDX-License-Identifier: Apache-2.0
// Kernels that read each row more than once (layernorm, softmax): a warp or a block, called a team, takes a
// row.
#pragma once

#include "codelets/cuda/kernels/launch.cuh"
#include "codelets/cuda/kernels/warp.cuh"
#include "starpipe/base/index.hpp"

namespace starpipe::model::cuda {

/// The threads that share a row: a warp, or with PerBlock a block.
template <bool PerBlock>
struct Team {
  /// Returns the row of this thread's team.
  __device__ static std::size_t row() {
    return PerBlock ? blockIdx.x
                    : std::size_t{blockIdx.x} * (blockDim.x / warp_size) + threadIdx.x / warp_size;
  }
  /// Returns this thread's number in its team, in [0, size()).
  __device__ static unsigned lane() { return PerBlock ? threadIdx.x : threadIdx.x % warp_size; }
  __device__ static unsigned size() { return PerBlock ? blockDim.x : warp_size; }

  // Reductions over all threads of the team, in a fixed order. Every thread gets the result.
  __device__ static float sum(float value) {
    return over_warps(warp_sum(value), 0, [](float x) { return warp_sum(x); });
  }
  __device__ static float max(float value) {
    return over_warps(warp_max(value), -INFINITY, [](float x) { return warp_max(x); });
  }

 private:
  /// Reduces the results of the block's warps. `none`: the reduction's neutral element.
  template <class Reduce>
  __device__ static float over_warps(float of_warp, [[maybe_unused]] float none,
                                     [[maybe_unused]] Reduce reduce) {
    if constexpr (PerBlock) {
      __shared__ float of_warps[warp_size];
      __syncthreads();  // until all threads have read of_warps in the call before this one
      if (threadIdx.x % warp_size == 0) of_warps[threadIdx.x / warp_size] = of_warp;
      __syncthreads();
      return reduce(threadIdx.x % warp_size < blockDim.x / warp_size ? of_warps[threadIdx.x % warp_size]
                                                                     : none);
    } else {
      return of_warp;
    }
  }
};

/// Online softmax of values that come in blocks (Milakov and Gimelshein, arXiv 1805.02867): sums are kept
/// relative to the largest value so far, and rescaled when a block has a larger one.
struct OnlineSoftmax {
  float top = -INFINITY;  ///< the largest value so far
  float sum = 0;          ///< of exp(value - top)

  /// Call it before each block whose largest value is `block_top`. Rescales `sum` to the new top and returns
  /// the factor, with which the caller rescales its own sums. The caller then adds the block's exp(value -
  /// top) to `sum`.
  __device__ float raise(float block_top) {
    const float before = top;
    top = fmaxf(before, block_top);
    const float scale = before == -INFINITY ? 0.0f : expf(before - top);
    sum *= scale;
    return scale;
  }
  __device__ float log_sum_exp() const { return top + logf(sum); }
};

/// Returns a grid with a warp for each row, in blocks of default_threads.
inline Grid warp_per_row(std::size_t rows) noexcept {
  return {dim3(static_cast<unsigned>(ceil_div(rows, default_threads / warp_size))), dim3(default_threads)};
}
/// Returns a grid with a block of `threads` for each row.
inline Grid block_per_row(std::size_t rows, unsigned threads) noexcept {
  return {dim3(static_cast<unsigned>(rows)), dim3(threads)};
}

inline constexpr unsigned max_row_threads = 512;  ///< threads of a block that takes a row, at most

/// Divides the `count` columns of a row among a team: its threads take packs of N_ columns in turn.
/// With Held_ > 0 no thread gets more than Held_ packs of a row, so that it can hold them in registers.
template <bool PerBlock, int N_, int Held_>
struct Columns : Team<PerBlock> {
  static constexpr int N = N_;
  static constexpr int Held = Held_;
  // For __launch_bounds__: the largest number of threads of a block, and blocks that must fit the registers
  // of a multiprocessor.
  static constexpr unsigned block_threads = PerBlock ? max_row_threads : default_threads;
  static constexpr unsigned min_blocks = 1024 / block_threads;
  unsigned count;

  /// Returns the column at which this thread's p-th pack begins; >= count when the thread has no such pack.
  __device__ unsigned begin(unsigned p) const { return (p * this->size() + this->lane()) * N; }

  /// Calls function(p, column) for each pack p of this thread, which begins at `column`.
  template <class Function>
  __device__ void each(Function function) const {
    if constexpr (Held > 0) {
#pragma unroll
      for (unsigned p = 0; p < Held; ++p) {
        if (begin(p) < count) function(p, begin(p));
      }
    } else {
      for (unsigned p = 0; begin(p) < count; ++p) function(p, begin(p));
    }
  }
};

/// A thread's packs of a row of T: held in registers with Columns::Held > 0, else loaded again at each use.
template <class T, class Columns>
class Row {
 public:
  __device__ Row(const T* row, const Columns& columns) : row_(row) {
    if constexpr (Columns::Held > 0) {
      // No load depends on a condition, so all of them are in flight at once.
#pragma unroll
      for (unsigned p = 0; p < Columns::Held; ++p) {
        const unsigned column = columns.begin(p);
        held_[p] = load_pack<Columns::N>(row + (column < columns.count ? column : 0));
      }
    }
  }
  /// Returns this thread's p-th pack, which begins at `column`.
  __device__ Values<Columns::N> at(unsigned p, unsigned column) const {
    if constexpr (Columns::Held > 0) {
      return floats(held_[p]);
    } else {
      return load<Columns::N>(row_ + column);
    }
  }

 private:
  const T* row_;
  Pack<T, Columns::N> held_[Columns::Held > 0 ? Columns::Held : 1];
};

/// Chooses Columns and grid for rows of `columns` elements of T, and calls function(columns, grid) with them.
/// Rows are divided into packs where they consist of whole packs and `aligned` says that all arrays begin at
/// a pack.
template <class T, class Function>
void divide_rows(std::size_t rows, std::size_t columns, bool aligned, Function function) {
  constexpr int held = 4;
  const bool packs_fit = aligned && columns % pack_size<T> == 0;
  const auto count = static_cast<unsigned>(columns);
  const std::size_t threads = ceil_div(columns, held * pack_size<T>);  // so many can hold a row
  if (threads <= warp_size) {
    if (packs_fit) return function(Columns<false, pack_size<T>, held>{{}, count}, warp_per_row(rows));
    return function(Columns<false, 1, 0>{{}, count}, warp_per_row(rows));
  }
  if (packs_fit && threads <= max_row_threads) {
    const auto warps = static_cast<unsigned>(ceil_div(threads, warp_size));
    return function(Columns<true, pack_size<T>, held>{{}, count}, block_per_row(rows, warps * warp_size));
  }
  return function(Columns<true, 1, 0>{{}, count}, block_per_row(rows, max_row_threads));
}

// Rows up to this many columns are a warp's, wider ones a block's.
inline constexpr std::size_t max_warp_columns = 2048;
inline constexpr unsigned wide_row_threads =
    1024;  // blocks this large are few at a time, so caches hold their rows

/// Chooses teams for kernels that use each_pack(), and calls run(true if a block takes a row, elements of a
/// pack, grid), the first two as constants. `aligned`: all arrays begin at a pack.
template <class T, class Run>
void with_teams(std::size_t rows, std::size_t columns, bool aligned, Run run) noexcept {
  with_pack_size<pack_size<T>>(aligned, [&](auto size) {
    if (columns <= max_warp_columns) {
      run(std::false_type(), size, warp_per_row(rows));
    } else {
      run(std::true_type(), size, block_per_row(rows, wide_row_threads));
    }
  });
}

/// Calls function(size, column) for groups of `size` columns that together are the whole row: packs of N
/// columns where packs are aligned, and single columns (size 1) before the first and after the last pack.
template <class T, bool PerBlock, int N, class Function>
__device__ void each_pack(const T* row, std::size_t columns, Function function) {
  constexpr std::integral_constant<int, 1> one;
  const unsigned lane = Team<PerBlock>::lane();
  const auto past = reinterpret_cast<std::uintptr_t>(row) % (N * sizeof(T)) / sizeof(T);
  const std::size_t before = past == 0 ? 0 : N - past;
  if (lane < before && lane < columns) function(one, std::size_t{lane});
  std::size_t column = before + std::size_t{lane} * N;
  for (; column + N <= columns; column += std::size_t{Team<PerBlock>::size()} * N) {
    function(std::integral_constant<int, N>{}, column);
  }
  // At most one thread has the rest of the row: fewer columns than a pack.
  for (; N > 1 && column < columns; ++column) function(one, column);
}

}  // namespace starpipe::model::cuda
