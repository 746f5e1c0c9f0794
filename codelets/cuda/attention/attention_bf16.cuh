// SPDX-License-Identifier: Apache-2.0
// What attention in bf16 is made of: F in attention_bf16_forward.cuh, B in attention_bf16_backward.cuh, both
// in the manner of Dao (arXiv 2307.08691). Each warp of a block has some rows of one head, and all meet the
// other side's rows a tile at a time, while the next tile is copied. Products sum in fp32 and stay in
// registers: probabilities and the slopes of scores are rounded to bf16 there, and are then left factors.
// Exponentials are powers of 2.
#pragma once

#include "codelets/cuda/attention/attention_fp32.cuh"
#include "codelets/cuda/matrix/tensor_cores.cuh"

namespace starpipe::model::cuda::attention::bf16 {

using namespace tensor_cores;

inline constexpr int kStep = 16;  ///< rows of a left factor, and its columns
inline constexpr int kWarps = 4;
inline constexpr unsigned kThreads = kWarps * kWarp;
inline constexpr float kLog2E = 1.44269504f;

/// Elements from row to row of a tile: any eight neighbours' 16 bytes are in different banks.
template <int D>
inline constexpr int kStride = D + 8;

/// Floats that a tile takes.
template <int D, int Rows>
inline constexpr std::size_t kTileFloats = kStride<D>* Rows / 2;

__device__ inline int at_most(int most, int x) { return x < most ? x : most; }

/// A thread's place.
struct Lane {
  int warp = static_cast<int>(threadIdx.x) / kWarp;
  int index = static_cast<int>(threadIdx.x) % kWarp;
  // Of a product it has [row][column], the one to its right, and both 8 rows below.
  int row = index / 4;
  int column = index % 4 * 2;

  /// From a tile to what the lane gives to load_matrices() for the tile's first 16x16 elements: the four
  /// matrices are the upper left, lower left, upper right and lower right ones.
  template <int D>
  __device__ int matrix_row() const {
    return index % kStep * kStride<D> + index / kStep * 8;
  }
};

/// Begins to load rows [first, first + Rows) of one head, `stride` apart in memory. `vectors`: rows begin at
/// multiples of 16 bytes, and are as long.
template <int D, int Rows>
__device__ void begin_load(Bf16* tile, const Bf16* head, std::size_t stride, int first, const Shape& shape,
                           bool vectors) {
  constexpr int kVector = 8;
  constexpr int kAtOnce = static_cast<int>(kThreads) * kVector / D;  // rows
  static_assert(Rows % kAtOnce == 0);
  const int row = static_cast<int>(threadIdx.x) * kVector / D;
  const int column = static_cast<int>(threadIdx.x) * kVector % D;
  const int rows = column < shape.size ? shape.context - first - row : 0;  // from this one on; or negative
  const Bf16* const from =
      head + static_cast<std::size_t>(first + row) * stride + static_cast<std::size_t>(column);
  Bf16* const to = tile + row * kStride<D> + column;
  if (vectors) {
#pragma unroll
    for (int r = 0; r < Rows; r += kAtOnce) {
      const bool inside = r < rows;
      copy_async<16>(to + r * kStride<D>, inside ? from + static_cast<std::size_t>(r) * stride : head,
                     inside);
    }
  } else {
#pragma unroll 1
    for (int r = 0; r < Rows; r += kAtOnce) {
#pragma unroll 1
      for (int c = 0; c < kVector; ++c) {
        to[r * kStride<D> + c] =
            r < rows && column + c < shape.size
                ? from[static_cast<std::size_t>(r) * stride + static_cast<std::size_t>(c)]
                : static_cast<Bf16>(0.0f);
      }
    }
  }
  __syncwarp();  // lanes may have parted, and what tensor cores do is done together
}

/// A warp's rows, kStep * M, as left factors.
template <int D, int M>
struct Lefts {
  Matrices of[M][D / kStep];

  /// `rows`: the lane's matrix_row().
  __device__ void load_from(const Bf16* rows) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int k = 0; k < D / kStep; ++k) of[m][k] = load_matrices(rows + m * kStep * kStride<D> + k * kStep);
    }
  }
};

/// products += the warp's rows times 8 * N rows of a tile. `tile`: the lane's matrix_row().
template <int D, int M, int N>
__device__ void multiply_rows(const Lefts<D, M>& rows, const Bf16* tile, Product (&products)[M][N]) {
#pragma unroll
  for (int k = 0; k < D / kStep; ++k) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      const Matrices right = load_matrices(tile + n * 8 * kStride<D> + k * kStep);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add(products[m][n], rows.of[m][k], right.of[0], right.of[2]);
        multiply_add(products[m][n + 1], rows.of[m][k], right.of[1], right.of[3]);
      }
    }
  }
}

/// Of scores [query][key], or with kTransposed [key][query], makes those of keys behind the query's own
/// -infinity. `ahead`: by how much the first query is behind the first key.
template <bool kTransposed, int M, int N>
__device__ void mask(Product (&scores)[M][N], int ahead, const Lane& lane) {
  const int last = ahead + (kTransposed ? lane.column - lane.row : lane.row - lane.column);
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = m * kStep + i / 2 * 8;
        const int column = n * 8 + i % 2;
        if ((kTransposed ? row - column : column - row) > last) scores[m][n].at[i] = -INFINITY;
      }
    }
  }
}

/// Two neighbours, rounded.
__device__ inline Matrices as_left(const Product& left, const Product& right) {
  return {{pack(left.at[0], left.at[1]), pack(left.at[2], left.at[3]), pack(right.at[0], right.at[1]),
           pack(right.at[2], right.at[3])}};
}

/// What a warp sums for its rows.
template <int D, int M>
using Sums = Product[M][D / 8];

/// sums += weights times kStep rows of a tile. `tile`: the lane's matrix_row().
template <int D, int M>
__device__ void accumulate(const Matrices (&weights)[M], const Bf16* tile, Sums<D, M>& sums) {
#pragma unroll
  for (int n = 0; n < D / 8; n += 2) {
    const Matrices right = load_matrices_transposed(tile + n * 8);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      multiply_add(sums[m][n], weights[m], right.of[0], right.of[1]);
      multiply_add(sums[m][n + 1], weights[m], right.of[2], right.of[3]);
    }
  }
}

/// A float for each row of products that a lane has part of: of its first eight rows and its others.
template <int M>
using PerRow = float[M][2];

/// function(m, half, row) for those that are in the context; `first`: the warp's first row.
template <int M, class Function>
__device__ void for_rows(int first, const Lane& lane, const Shape& shape, Function function) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * kStep + half * 8 + lane.row;
      if (row < shape.context) function(m, half, row);
    }
  }
}

// Over the four lanes that share a row.
template <int M>
__device__ void sum_over_lanes(PerRow<M>& parts) {
#pragma unroll
  for (auto& row : parts) {
#pragma unroll
    for (float& part : row) {
      part += __shfl_xor_sync(kAllLanes, part, 1);
      part += __shfl_xor_sync(kAllLanes, part, 2);
    }
  }
}
__device__ inline float max_over_lanes(float part) {
  part = fmaxf(part, __shfl_xor_sync(kAllLanes, part, 1));
  return fmaxf(part, __shfl_xor_sync(kAllLanes, part, 2));
}

/// Writes factor * sums to the warp's rows of a head, the first of which is `first`. They go through the
/// warp's own rows of a tile, `stage`, which must have been read.
template <int D, int M>
__device__ void store_rows(const Sums<D, M>& sums, float factor, Bf16* stage, Bf16* head, std::size_t stride,
                           int first, const Lane& lane, const Shape& shape, bool vectors) {
  __syncwarp();
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_pair(stage + (m * kStep + half * 8 + lane.row) * kStride<D> + n * 8 + lane.column,
                   pack(factor * sums[m][n].at[2 * half], factor * sums[m][n].at[2 * half + 1]));
      }
    }
  }
  __syncwarp();
  constexpr int kVector = 8;
  for (int i = lane.index * kVector; i < M * kStep * D; i += kWarp * kVector) {
    const int row = i / D;
    const int column = i % D;
    if (first + row >= shape.context) continue;
    const Bf16* const from = stage + row * kStride<D> + column;
    Bf16* const to = head + static_cast<std::size_t>(first + row) * stride + static_cast<std::size_t>(column);
    if (!vectors) {
      for (int c = 0; c < kVector && column + c < shape.size; ++c) to[c] = from[c];
    } else if (column < shape.size) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    }
  }
}

}  // namespace starpipe::model::cuda::attention::bf16
