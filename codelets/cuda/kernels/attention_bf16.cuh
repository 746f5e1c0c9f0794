// SPDX-License-Identifier: Apache-2.0
// Shared parts of the bf16 kernels of causal attention: F is in attention_bf16_forward.cuh, B in
// attention_bf16_backward.cuh, both in the manner of FlashAttention-2 (Dao, arXiv 2307.08691). A thread block
// keeps rows of one head, divided among its 4 warps: queries, or in one of B's kernels keys. It goes over the
// rows of the other side (keys or queries) a tile at a time, while cp.async copies the next tile. Tensor
// cores multiply bf16 and sum in fp32; accumulators stay in registers. Probabilities and gradients of scores
// are rounded to bf16 in registers and become the A fragments of the next product. Exponentials are powers
// of 2.
//
// Template parameters: D is the width of tiles, the smallest of 32, 64 and 128 that holds a head's columns. M
// is the number of A fragments of a warp, one below the other: the warp has 16 * M rows. N is the number of
// accumulators side by side: they have 8 * N columns.
#pragma once

#include "codelets/cuda/kernels/launch.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "codelets/cuda/kernels/shape.cuh"
#include "codelets/cuda/kernels/tensor_cores.cuh"

namespace starpipe::model::cuda::attention::bf16 {

using namespace tensor_cores;

inline constexpr int fragment_size = 16;  ///< rows of an A fragment, and its columns
inline constexpr int block_warps = 4;
inline constexpr unsigned block_threads = block_warps * warp_size;
inline constexpr int pack_elements = 8;  ///< elements that one instruction moves: 16 bytes
inline constexpr float log2_e = 1.44269504f;

/// Elements from row to row of a tile. With 8 elements (16 bytes) more than D, the same 16 bytes of 8
/// consecutive rows, which ldmatrix reads together, lie in different banks.
template <int D>
inline constexpr int tile_stride = D + 8;

/// Floats of shared memory that a tile of `Rows` rows takes.
template <int D, int Rows>
inline constexpr std::size_t tile_floats = tile_stride<D>* Rows / 2;

/// The rows of a thread block and the floats of its shared memory. A warp has as many rows as its registers
/// hold, since each load of the other side's rows from shared memory serves all rows of the warp.
template <int D>
struct Tiles {
  static constexpr int row_fragments = D <= 64 ? 2 : 1;  ///< A fragments of a warp, 16 rows each
  static constexpr int rows = block_warps * row_fragments * fragment_size;  ///< of a thread block
  static constexpr int others = D <= 64 ? 64 : 32;  ///< rows of a tile of the other side
  static constexpr std::size_t tile = tile_floats<D, others>;
  /// The floats of one of the two buffers of the keys' kernel. It holds a tile of queries and one of dy, then
  /// their log_sums and deltas.
  static constexpr std::size_t buffer = 2 * tile + 2 * others;
  // Shared memory: the block's rows, and two buffers for the tiles of the other side.
  static constexpr std::size_t forward_shared = tile_floats<D, rows> + 4 * tile;
  static constexpr std::size_t queries_shared = tile_floats<D, 2 * rows> + 4 * tile;
  static constexpr std::size_t keys_shared = tile_floats<D, 2 * rows> + 2 * buffer;
  static_assert(rows % others == 0);
  static_assert(others % warp_size == 0 &&
                2 * others <= int{block_threads});  // whole warps copy the statistics
};

/// The calling thread's warp and lane, and its elements of an accumulator of 16x8: [row][column],
/// [row][column + 1], [row + 8][column] and [row + 8][column + 1].
struct Lane {
  int warp = static_cast<int>(threadIdx.x) / warp_size;   ///< in [0, block_warps)
  int index = static_cast<int>(threadIdx.x) % warp_size;  ///< in [0, 32)
  int row = index / 4;                                    ///< in [0, 8)
  int column = index % 4 * 2;                             ///< 0, 2, 4 or 6

  /// Returns the offset, in elements from a tile's first element, of the row that this lane gives to
  /// load_matrices(). The warp then loads the tile's first 16x16 elements, as 8x8 matrices in the order upper
  /// left, lower left, upper right, lower right.
  template <int D>
  __device__ int matrix_row() const {
    return index % fragment_size * tile_stride<D> + index / fragment_size * 8;
  }
};

/// Begins to load rows [first, first + Count) of a head into a tile; the tile is there after
/// wait_for_copies() and a barrier. All threads of the block call it. Columns beyond the head and rows behind
/// its last become 0. `head`: its first element in the sequence's first row, and elements from row to row
/// there; `rows_of_head`: of the sequence. Unless shape.aligned, the calling thread copies its elements one
/// by one, before it returns.
template <int D, int Count>
__device__ void begin_load(Bf16* tile, Rows<const Bf16> head, int first, int rows_of_head,
                           const Shape& shape) {
  // Rows that the block's threads copy at once.
  constexpr int rows_at_once = static_cast<int>(block_threads) * pack_elements / D;
  static_assert(Count % rows_at_once == 0);
  const int row = static_cast<int>(threadIdx.x) * pack_elements / D;
  const int column = static_cast<int>(threadIdx.x) * pack_elements % D;
  // Number of the head's rows from this thread's first row on; <= 0 when all its elements are outside.
  const int rows = column < shape.size ? rows_of_head - first - row : 0;
  const Bf16* const from =
      head.first + static_cast<std::size_t>(first + row) * head.columns + static_cast<std::size_t>(column);
  Bf16* const to = tile + row * tile_stride<D> + column;
  if (shape.aligned) {
#pragma unroll
    for (int r = 0; r < Count; r += rows_at_once) {
      const bool inside = r < rows;
      copy_async<16>(to + r * tile_stride<D>,
                     inside ? from + static_cast<std::size_t>(r) * head.columns : head.first, inside);
    }
  } else {
#pragma unroll 1
    for (int r = 0; r < Count; r += rows_at_once) {
#pragma unroll 1
      for (int c = 0; c < pack_elements; ++c) {
        to[r * tile_stride<D> + c] =
            r < rows && column + c < shape.size
                ? from[static_cast<std::size_t>(r) * head.columns + static_cast<std::size_t>(c)]
                : static_cast<Bf16>(0.0f);
      }
    }
  }
  __syncwarp();  // lanes may have diverged, and ldmatrix and mma need the whole warp
}

/// The A fragments of a warp's rows: of[m][k] has rows [16 m, 16 m + 16) and columns [16 k, 16 k + 16).
template <int D, int M>
struct RowFragments {
  FragmentA of[M][D / fragment_size];

  /// `rows`: the warp's first row in a tile, plus this lane's matrix_row().
  __device__ void load_from(const Bf16* rows) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int k = 0; k < D / fragment_size; ++k) {
        of[m][k] = load_matrices(rows + m * fragment_size * tile_stride<D> + k * fragment_size);
      }
    }
  }
};

/// products += rows * tile': the dot products of the warp's 16 * M rows with 8 * N rows of a tile. `tile`:
/// the first of these tile rows, plus this lane's matrix_row().
template <int D, int M, int N>
__device__ void multiply_rows(const RowFragments<D, M>& rows, const Bf16* tile,
                              Accumulator (&products)[M][N]) {
#pragma unroll
  for (int k = 0; k < D / fragment_size; ++k) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      // A row of the tile is a column of B, so the loaded matrices are the transposes that multiply_add()
      // takes. b.of[0] and b.of[2] are the upper and lower half of B's first 8 columns; b.of[1] and b.of[3]
      // are the halves of its next 8 columns.
      const Matrices b = load_matrices(tile + n * 8 * tile_stride<D> + k * fragment_size);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add(products[m][n], rows.of[m][k], b.of[0], b.of[2]);
        multiply_add(products[m][n + 1], rows.of[m][k], b.of[1], b.of[3]);
      }
    }
  }
}

/// Causal mask: sets the score of every key later than its query to -infinity. Scores are [query][key], or
/// with Transposed [key][query]. `offset`: position of the first query minus position of the first key.
template <bool Transposed, int M, int N>
__device__ void mask(Accumulator (&scores)[M][N], int offset, const Lane& lane) {
  // A key is later than its query when its index in the scores exceeds the query's by more than `offset`.
  // `last` takes in the lane's own row and column, so that the compiler knows the rest of both indices.
  const int last = offset + (Transposed ? lane.column - lane.row : lane.row - lane.column);
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = m * fragment_size + i / 2 * 8;
        const int column = n * 8 + i % 2;
        if ((Transposed ? row - column : column - row) > last) scores[m][n].at[i] = -INFINITY;
      }
    }
  }
}

/// Returns the A fragment of 16 columns of accumulators, `left` and `right` of 8 columns each, rounded to
/// bf16. The layouts of both fragments have the same elements in the same lane, so no data moves between
/// lanes.
__device__ inline FragmentA to_fragment_a(const Accumulator& left, const Accumulator& right) {
  return {{pack(left.at[0], left.at[1]), pack(left.at[2], left.at[3]), pack(right.at[0], right.at[1]),
           pack(right.at[2], right.at[3])}};
}

/// Accumulators of D columns for each of a warp's 16 * M rows.
template <int D, int M>
using Sums = Accumulator[M][D / 8];

/// sums += weights * tile. `weights`: a matrix [16 * M][16]; `tile`: the first of 16 rows of D columns, plus
/// this lane's matrix_row().
template <int D, int M>
__device__ void accumulate(const FragmentA (&weights)[M], const Bf16* tile, Sums<D, M>& sums) {
#pragma unroll
  for (int n = 0; n < D / 8; n += 2) {
    // Here a row of the tile is a row of B. b.of[0] and b.of[1] are the upper and lower half of B's first 8
    // columns; b.of[2] and b.of[3] are the halves of its next 8 columns.
    const Matrices b = load_matrices_transposed(tile + n * 8);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      multiply_add(sums[m][n], weights[m], b.of[0], b.of[1]);
      multiply_add(sums[m][n + 1], weights[m], b.of[2], b.of[3]);
    }
  }
}

/// A float for each row in which the lane has elements: [m][half] is the warp's row 16 m + 8 half + lane.row.
template <int M>
using PerRow = float[M][2];

/// Calls function(m, half, query) for each of the lane's rows that is one of the sequence's queries;
/// [m][half] is its index in a PerRow. `first`: the warp's first query.
template <int M, class Function>
__device__ void for_each_row(int first, const Lane& lane, const Shape& shape, Function function) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * fragment_size + half * 8 + lane.row;
      if (row < shape.queries) function(m, half, row);
    }
  }
}

// Reductions over a quad: the four neighbouring lanes that have the elements of the same row.
template <int M>
__device__ void sum_over_quad(PerRow<M>& values) {
#pragma unroll
  for (auto& halves : values) {
#pragma unroll
    for (float& value : halves) {
      value += __shfl_xor_sync(all_lanes, value, 1);
      value += __shfl_xor_sync(all_lanes, value, 2);
    }
  }
}
__device__ inline float max_over_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(all_lanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(all_lanes, value, 2));
}

/// Stores factor * sums, rounded, as rows [first, first + 16 * M) of a head; rows behind its last are left
/// out. `buffer`: the warp's own rows of a tile that no thread reads any more. The sums go through the buffer
/// so that each lane can store 16 neighbouring bytes. `head` and `rows_of_head` are as in begin_load().
template <int D, int M>
__device__ void store_rows(const Sums<D, M>& sums, float factor, Bf16* buffer, Rows<Bf16> head,
                           int rows_of_head, int first, const Lane& lane, const Shape& shape) {
  __syncwarp();
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_pair(buffer + (m * fragment_size + half * 8 + lane.row) * tile_stride<D> + n * 8 + lane.column,
                   pack(factor * sums[m][n].at[2 * half], factor * sums[m][n].at[2 * half + 1]));
      }
    }
  }
  __syncwarp();
  for (int i = lane.index * pack_elements; i < M * fragment_size * D; i += warp_size * pack_elements) {
    const int row = i / D;
    const int column = i % D;
    if (first + row >= rows_of_head) continue;
    const Bf16* const from = buffer + row * tile_stride<D> + column;
    Bf16* const to =
        head.first + static_cast<std::size_t>(first + row) * head.columns + static_cast<std::size_t>(column);
    if (!shape.aligned) {
      for (int c = 0; c < pack_elements && column + c < shape.size; ++c) to[c] = from[c];
    } else if (column < shape.size) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    }
  }
}

/// Does the same for a head of floats, without the buffer.
template <int D, int M>
__device__ void store_rows(const Sums<D, M>& sums, float factor, Bf16* /*buffer*/, Rows<float> head,
                           int rows_of_head, int first, const Lane& lane, const Shape& shape) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * fragment_size + half * 8 + lane.row;
      if (row >= rows_of_head) continue;
      float* const to = head.first + static_cast<std::size_t>(row) * head.columns;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int column = n * 8 + lane.column;
        const float left = factor * sums[m][n].at[2 * half];
        const float right = factor * sums[m][n].at[2 * half + 1];
        if (shape.aligned && column < shape.size) {
          *reinterpret_cast<float2*>(to + column) = {left, right};
        } else {
          if (column < shape.size) to[column] = left;
          if (column + 1 < shape.size) to[column + 1] = right;
        }
      }
    }
  }
}

/// Holds a thread block's tile of queries, and the range of keys that they see. The kernels of F and of the
/// gradients of queries use it.
template <int D>
struct QueryBlock {
  static constexpr int M = Tiles<D>::row_fragments;
  static constexpr int tile_keys = Tiles<D>::others;

  const Shape& shape;
  Rows<const Bf16> kv;
  Lane lane = {};
  HeadPlace at = {shape, blockIdx.x};
  Rows<const Bf16> k = {at.k(kv), kv.columns};
  Rows<const Bf16> v = {at.v(kv), kv.columns};
  /// The block's first query. Blocks start in the order of their numbers, so the smallest blockIdx.y gets the
  /// last queries: they have the most keys.
  int block = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tiles<D>::rows;
  int first = block + lane.warp * M * fragment_size;  ///< the warp's first query
  int position = shape.first_position() + first;      ///< its position
  /// The block's queries see keys [0, keys).
  int keys = smaller(shape.keys, shape.first_position() + block + Tiles<D>::rows);
  int own = lane.warp * M * fragment_size * tile_stride<D>;  ///< offset of the warp's rows in their tile
  Bf16* q = reinterpret_cast<Bf16*>(shared_floats());        ///< the tile of queries

  __device__ void begin_queries(Rows<const Bf16> rows) const {
    begin_load<D, Tiles<D>::rows>(q, {at.q(rows), rows.columns}, block, shape.queries, shape);
  }
  /// Begins to load keys [key, key + tile_keys) into a tile, and their values into the tile behind it.
  __device__ void begin_keys_and_values(Bf16* tile, int key) const {
    begin_load<D, tile_keys>(tile, k, key, shape.keys, shape);
    begin_load<D, tile_keys>(tile + tile_keys * tile_stride<D>, v, key, shape.keys, shape);
  }
};

}  // namespace starpipe::model::cuda::attention::bf16
