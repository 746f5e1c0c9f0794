// SPDX-License-Identifier: Apache-2.0
// What kernels are made of that go through rows more than once.
#pragma once

#include "codelets/cuda/kernels/kernels.cuh"

namespace starpipe::model::cuda {

/// The threads that have a row in common: a warp, or with kBlock a block.
template <bool kBlock>
struct Team {
  __device__ static std::size_t row() {
    return kBlock ? blockIdx.x : std::size_t{blockIdx.x} * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  }
  __device__ static unsigned lane() { return kBlock ? threadIdx.x : threadIdx.x % kWarp; }
  __device__ static unsigned size() { return kBlock ? blockDim.x : kWarp; }

  // Over all of its threads, in an order that is fixed; every thread gets the result.
  __device__ static float sum(float value) {
    return over_warps(warp_sum(value), 0, [](float x) { return warp_sum(x); });
  }
  __device__ static float max(float value) {
    return over_warps(warp_max(value), -INFINITY, [](float x) { return warp_max(x); });
  }

 private:
  template <class Reduce>
  __device__ static float over_warps(float of_warp, [[maybe_unused]] float none,
                                     [[maybe_unused]] Reduce reduce) {
    if constexpr (kBlock) {
      __shared__ float of_warps[kWarp];
      __syncthreads();  // after what an earlier call reads
      if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = of_warp;
      __syncthreads();
      return reduce(threadIdx.x % kWarp < blockDim.x / kWarp ? of_warps[threadIdx.x % kWarp] : none);
    } else {
      return of_warp;
    }
  }
};

/// Teams for so many rows, of warps or of blocks of so many threads.
inline Grid warp_rows(std::size_t rows) noexcept {
  return {dim3(static_cast<unsigned>(parts(rows, kThreads / kWarp))), dim3(kThreads)};
}
inline Grid block_rows(std::size_t rows, unsigned threads) noexcept {
  return {dim3(static_cast<unsigned>(rows)), dim3(threads)};
}

inline constexpr unsigned kMostThreads = 512;  ///< of a block that has a row

/// How a team divides a row: in packs of N columns, in turn. With kHeld a thread has no more packs than that,
/// and can hold them in registers.
template <bool kBlock, int N_, int kHeld_>
struct Columns : Team<kBlock> {
  static constexpr int N = N_;
  static constexpr int kHeld = kHeld_;
  // What launch bounds say: threads of a block, at most, and blocks that a multiprocessor has registers for.
  static constexpr unsigned kBlockThreads = kBlock ? kMostThreads : kThreads;
  static constexpr unsigned kBlocksAtOnce = 1024 / kBlockThreads;
  unsigned count;

  /// Where this thread's p-th pack begins.
  __device__ unsigned begin(unsigned p) const { return (p * this->size() + this->lane()) * N; }

  /// function(p, column) of this thread's packs: the p-th one begins at the column.
  template <class Function>
  __device__ void each(Function function) const {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (unsigned p = 0; p < kHeld; ++p) {
        if (begin(p) < count) function(p, begin(p));
      }
    } else {
      for (unsigned p = 0; begin(p) < count; ++p) function(p, begin(p));
    }
  }
};

/// A thread's packs of a row of T: held, or read again each time.
template <class T, class Columns>
class Row {
 public:
  __device__ Row(const T* row, const Columns& columns) : row_(row) {
    if constexpr (Columns::kHeld > 0) {
#pragma unroll
      for (unsigned p = 0; p < Columns::kHeld; ++p) {  // all at once: no load depends on a condition
        const unsigned column = columns.begin(p);
        held_[p] = load_pack<Columns::N>(row + (column < columns.count ? column : 0));
      }
    }
  }
  __device__ Values<Columns::N> at(unsigned p, unsigned column) const {
    if constexpr (Columns::kHeld > 0) {
      return floats(held_[p]);
    } else {
      return load<Columns::N>(row_ + column);
    }
  }

 private:
  const T* row_;
  Pack<T, Columns::N> held_[Columns::kHeld > 0 ? Columns::kHeld : 1];
};

/// function(columns, grid) with a division of rows of T that suits them. `packs`: whether each begins one.
template <class T, class Function>
void divide_rows(std::size_t rows, std::size_t columns, bool packs, Function function) {
  constexpr int kHeld = 4;
  const auto count = static_cast<unsigned>(columns);
  const std::size_t threads = parts(columns, kHeld * kPack<T>);
  if (threads <= kWarp) {
    if (packs) return function(Columns<false, kPack<T>, kHeld>{{}, count}, warp_rows(rows));
    return function(Columns<false, 1, 0>{{}, count}, warp_rows(rows));
  }
  if (packs && threads <= kMostThreads) {
    const auto warps = static_cast<unsigned>(parts(threads, kWarp));
    return function(Columns<true, kPack<T>, kHeld>{{}, count}, block_rows(rows, warps * kWarp));
  }
  return function(Columns<true, 1, 0>{{}, count}, block_rows(rows, kMostThreads));
}

}  // namespace starpipe::model::cuda
