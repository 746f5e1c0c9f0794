// SPDX-License-Identifier: Apache-2.0
// B in two kernels, so that nothing is added atomically. Names are as in attention_fp32.cuh: p, dp, ds,
// delta. The queries' kernel goes over the keys twice, first for delta, a sum over all keys of a query, then
// for dq. The keys' kernel computes transposed products, [key][query]: so p and ds come out as A fragments
// for dv = p' dy and dk = ds' q.
#pragma once

#include "codelets/cuda/kernels/attention_bf16.cuh"
#include "starpipe/base/index.hpp"

namespace starpipe::model::cuda::attention::bf16 {

/// The tiles of the queries' kernel.
template <int D>
struct BackwardQueries {
  static constexpr int row_fragments = D <= 64 ? 2 : 1;  ///< A fragments of a warp, 16 queries each
  static constexpr int rows = block_warps * row_fragments * fragment_size;  ///< queries of a thread block
  static constexpr int keys = D <= 64 ? 64 : 32;                            ///< keys of a tile
  /// Floats of shared memory: queries and dy, and two buffers for a tile of keys and one of values.
  static constexpr std::size_t shared = tile_floats<D, 2 * rows + 2 * 2 * keys>;
};

/// Registers of a warp of the queries' kernel, for its rows.
template <int D>
struct QueryRows {
  static constexpr int M = BackwardQueries<D>::row_fragments;
  RowFragments<D, M> q;
  RowFragments<D, M> dy;
  PerRow<M> log_sums = {};  ///< log-sum-exp of the scores, times log2(e)
  PerRow<M> deltas = {};
  Sums<D, M> dq;  ///< without the factor shape.scale
};

/// Adds the contributions of a tile's first `count` keys to the warp's deltas (with ForDeltas) or to its dq.
/// `k` and `v`: the tiles of keys and values, plus this lane's matrix_row(). `scale` has log2(e) as a factor.
/// `offset`: position of the warp's first query minus position of the tile's first key.
template <int D, bool ForDeltas>
__device__ void add_keys(QueryRows<D>& rows, const Bf16* k, const Bf16* v, float scale, int count, int offset,
                         const Lane& lane) {
  constexpr int M = QueryRows<D>::M;
#pragma unroll 1  // unrolled, it would need too many registers
  for (int at = 0; at < count; at += fragment_size) {
    Accumulator scores[M][2];
    Accumulator ds[M][2];  // dp at first
    multiply_rows<D>(rows.q, k + at * tile_stride<D>, scores);
    multiply_rows<D>(rows.dy, v + at * tile_stride<D>, ds);
    if (offset - at < fragment_size - 1) mask<false>(scores, offset - at, lane);
    FragmentA weights[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float p = exp2_approximate(fmaf(scale, scores[m][n].at[i], -rows.log_sums[m][i / 2]));
          float& d = ds[m][n].at[i];
          if (ForDeltas) rows.deltas[m][i / 2] += p * d;
          d = p * (d - rows.deltas[m][i / 2]);
        }
      }
      weights[m] = to_fragment_a(ds[m][0], ds[m][1]);
    }
    if (!ForDeltas) accumulate<D>(weights, k + at * tile_stride<D>, rows.dq);
  }
}

/// B for the queries: the same function as attention::backward_queries() for fp32. blockIdx.x is sequence *
/// heads + head; each blockIdx.y is a block of BackwardQueries<D>::rows queries. `aligned` is as in
/// begin_load().
template <int D>
__global__ void __launch_bounds__(block_threads)
    backward_queries(Shape shape, bool aligned, const Bf16* qkv, const float* log_sums, const Bf16* dy,
                     Bf16* dqkv, float* deltas) {
  using Tiles = BackwardQueries<D>;
  constexpr int M = Tiles::row_fragments;
  const Lane lane;
  const HeadOffsets at = head_offsets(shape, blockIdx.x);
  // Position of the block's first query. Blocks start in the order of their numbers, so the smallest
  // blockIdx.y gets the last queries: they have the most keys.
  const int block = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tiles::rows;
  const int first = block + lane.warp * M * fragment_size;       // position of the warp's first query
  const int keys = smaller(shape.context, block + Tiles::rows);  // the block's queries see keys [0, keys)
  const int tiles = static_cast<int>(ceil_div(static_cast<std::size_t>(keys), Tiles::keys));
  Bf16* const q = reinterpret_cast<Bf16*>(shared_floats());
  Bf16* const g = q + Tiles::rows * tile_stride<D>;  // the tile of dy
  // Step s of 2 * tiles steps does tile s % tiles: the first `tiles` steps sum the deltas, the others dq.
  // Steps use the two buffers in turn. A buffer is a tile of keys, followed by the tile of their values.
  const auto tile_of = [&](int step) {
    return g + (Tiles::rows + step % 2 * 2 * Tiles::keys) * tile_stride<D>;
  };
  const auto first_key_of = [&](int step) { return (step < tiles ? step : step - tiles) * Tiles::keys; };
  const auto begin_keys_and_values = [&](int step) {
    Bf16* const tile = tile_of(step);
    begin_load<D, Tiles::keys>(tile, qkv + at.k, shape.columns, first_key_of(step), shape, aligned);
    begin_load<D, Tiles::keys>(tile + Tiles::keys * tile_stride<D>, qkv + at.v, shape.columns,
                               first_key_of(step), shape, aligned);
  };
  begin_load<D, Tiles::rows>(q, qkv + at.q, shape.columns, block, shape, aligned);
  begin_load<D, Tiles::rows>(g, dy + at.output, shape.hidden, block, shape, aligned);
  begin_keys_and_values(0);
  QueryRows<D> rows;
  for_each_row<M>(first, lane, shape, [&](int m, int half, int query) {
    rows.log_sums[m][half] = log2_e * log_sums[at.row + static_cast<std::size_t>(query)];
  });
  wait_for_copies();
  __syncthreads();
  const int own = lane.warp * M * fragment_size * tile_stride<D>;  // offset of the warp's rows in q and g
  rows.q.load_from(q + own + lane.matrix_row<D>());
  rows.dy.load_from(g + own + lane.matrix_row<D>());

  const float scale = shape.scale * log2_e;
  for (int step = 0; step < 2 * tiles; ++step) {
    if (step + 1 < 2 * tiles) begin_keys_and_values(step + 1);
    if (step == tiles) sum_over_quad(rows.deltas);
    const int key = first_key_of(step);
    const int offset = first - key;
    // Number of the tile's keys that the warp's last query sees; 0 or less when it sees none.
    const int count =
        first < keys ? smaller(Tiles::keys, smaller(offset + M * fragment_size, keys - key)) : 0;
    const Bf16* const k = tile_of(step) + lane.matrix_row<D>();
    const Bf16* const v = k + Tiles::keys * tile_stride<D>;
    if (step < tiles) {
      add_keys<D, true>(rows, k, v, scale, count, offset, lane);
    } else {
      add_keys<D, false>(rows, k, v, scale, count, offset, lane);
    }
    wait_for_copies();
    __syncthreads();
  }

  for_each_row<M>(first, lane, shape, [&](int m, int half, int query) {
    if (lane.column == 0) deltas[at.row + static_cast<std::size_t>(query)] = rows.deltas[m][half];
  });
  store_rows<D, M>(rows.dq, shape.scale, q + own, dqkv + at.q, shape.columns, first, lane, shape, aligned);
}

/// The tiles of the keys' kernel.
template <int D>
struct BackwardKeys {
  static constexpr int row_fragments = D <= 64 ? 2 : 1;  ///< A fragments of a warp, 16 keys each
  static constexpr int rows = block_warps * row_fragments * fragment_size;  ///< keys of a thread block
  static constexpr int queries = D <= 64 ? 64 : 32;                         ///< queries of a tile
  static constexpr std::size_t tile = tile_floats<D, queries>;
  /// Floats of one of the two buffers: tiles of queries and dy, then the queries' log_sums and deltas.
  static constexpr std::size_t buffer = 2 * tile + 2 * queries;
  static constexpr std::size_t shared = tile_floats<D, 2 * rows> + 2 * buffer;  ///< with the keys and values
  static_assert(rows % queries == 0);
  static_assert(queries % warp_size == 0 &&
                2 * queries <= int{block_threads});  // whole warps copy the statistics
};

/// Registers of a warp of the keys' kernel, for its rows.
template <int D>
struct KeyRows {
  static constexpr int M = BackwardKeys<D>::row_fragments;
  RowFragments<D, M> k;
  RowFragments<D, M> v;
  Sums<D, M> dk;  ///< without the factor shape.scale
  Sums<D, M> dv;
};

/// Adds the contributions of a buffer's first `count` queries to the warp's dk and dv. `scale` has log2(e) as
/// a factor. `offset`: position of the buffer's first query minus position of the warp's first key.
template <int D>
__device__ void add_queries(KeyRows<D>& rows, const float* buffer, float scale, int count, int offset,
                            const Lane& lane) {
  using Tiles = BackwardKeys<D>;
  constexpr int M = Tiles::row_fragments;
  const Bf16* const q = reinterpret_cast<const Bf16*>(buffer) + lane.matrix_row<D>();
  const Bf16* const g = reinterpret_cast<const Bf16*>(buffer + Tiles::tile) + lane.matrix_row<D>();
  const float* const log_sums = buffer + 2 * Tiles::tile + lane.column;
  const float* const deltas = log_sums + Tiles::queries;
#pragma unroll 1  // unrolled, it would need too many registers
  for (int at = offset < 0 ? -offset : 0; at < count; at += fragment_size) {
    Accumulator p[M][2];   // scores at first; [key][query]
    Accumulator ds[M][2];  // dp at first
    multiply_rows<D>(rows.k, q + at * tile_stride<D>, p);
    multiply_rows<D>(rows.v, g + at * tile_stride<D>, ds);
    if (offset + at < M * fragment_size - 1) mask<true>(p, offset + at, lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      // The columns of an accumulator are queries: `side` is the left (0) or the right (1) of the lane's two.
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const float log_sum = log2_e * log_sums[at + n * 8 + side];
        const float delta = deltas[at + n * 8 + side];
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int i = side; i < 4; i += 2) {
            p[m][n].at[i] = exp2_approximate(fmaf(scale, p[m][n].at[i], -log_sum));
            ds[m][n].at[i] = p[m][n].at[i] * (ds[m][n].at[i] - delta);
          }
        }
      }
    }
    FragmentA weights[2][M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      weights[0][m] = to_fragment_a(p[m][0], p[m][1]);
      weights[1][m] = to_fragment_a(ds[m][0], ds[m][1]);
    }
    accumulate<D>(weights[0], g + at * tile_stride<D>, rows.dv);
    accumulate<D>(weights[1], q + at * tile_stride<D>, rows.dk);
  }
}

/// B for the keys and values: the same function as attention::backward_keys() for fp32. Runs after
/// backward_queries(). blockIdx.x is sequence * heads + head, of the heads of keys and values; each
/// blockIdx.y is a block of BackwardKeys<D>::rows keys. Queries beyond the context are 0 in their tile, and
/// so are their dy, log_sums and deltas: they contribute nothing. `aligned` is as in begin_load().
template <int D>
__global__ void __launch_bounds__(block_threads)
    backward_keys(Shape shape, bool aligned, const Bf16* qkv, const float* log_sums, const float* deltas,
                  const Bf16* dy, Bf16* dqkv) {
  using Tiles = BackwardKeys<D>;
  constexpr int M = Tiles::row_fragments;
  const Lane lane;
  // The offsets of the group's first query head. The others follow it in all arrays.
  const HeadOffsets at = head_offsets(shape, blockIdx.x * static_cast<std::size_t>(shape.group));
  const int block = static_cast<int>(blockIdx.y) * Tiles::rows;  // position of the block's first key
  const int first = block + lane.warp * M * fragment_size;       // position of the warp's first key
  Bf16* const k = reinterpret_cast<Bf16*>(shared_floats());
  Bf16* const v = k + Tiles::rows * tile_stride<D>;
  // A step does a tile of queries of one head: `tiles` steps for each head of the group. Steps use the two
  // buffers in turn.
  const int tiles =
      static_cast<int>(ceil_div(static_cast<std::size_t>(shape.context - block), Tiles::queries));
  const int steps = shape.group * tiles;
  const auto first_query_of = [&](int step) { return block + step % tiles * Tiles::queries; };
  const auto buffer_of = [&](int step) {
    return shared_floats() + tile_floats<D, 2 * Tiles::rows> +
           static_cast<std::size_t>(step % 2) * Tiles::buffer;
  };
  const auto begin_queries = [&](int step) {
    const int query = first_query_of(step);
    const auto member = static_cast<std::size_t>(step / tiles);
    const std::size_t column = member * static_cast<std::size_t>(shape.size);
    float* const buffer = buffer_of(step);
    begin_load<D, Tiles::queries>(reinterpret_cast<Bf16*>(buffer), qkv + at.q + column, shape.columns, query,
                                  shape, aligned);
    begin_load<D, Tiles::queries>(reinterpret_cast<Bf16*>(buffer + Tiles::tile), dy + at.output + column,
                                  shape.hidden, query, shape, aligned);
    // Thread i < queries copies the i-th log_sum, the next `queries` threads the deltas.
    const int i = static_cast<int>(threadIdx.x) % Tiles::queries;
    const float* const statistics = static_cast<int>(threadIdx.x) < Tiles::queries ? log_sums : deltas;
    if (static_cast<int>(threadIdx.x) >= 2 * Tiles::queries) return;
    const bool inside = query + i < shape.context;
    copy_async<4>(buffer + 2 * Tiles::tile + threadIdx.x,
                  statistics + at.row + member * static_cast<std::size_t>(shape.context) +
                      (inside ? static_cast<std::size_t>(query + i) : 0),
                  inside);
  };
  begin_load<D, Tiles::rows>(k, qkv + at.k, shape.columns, block, shape, aligned);
  begin_load<D, Tiles::rows>(v, qkv + at.v, shape.columns, block, shape, aligned);
  begin_queries(0);
  wait_for_copies();
  __syncthreads();
  const int own = lane.warp * M * fragment_size * tile_stride<D>;  // offset of the warp's rows in k and v
  KeyRows<D> rows;
  rows.k.load_from(k + own + lane.matrix_row<D>());
  rows.v.load_from(v + own + lane.matrix_row<D>());

  const float scale = shape.scale * log2_e;
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) begin_queries(step + 1);
    const int query = first_query_of(step);
    const int count = smaller(Tiles::queries, shape.context - query);
    add_queries(rows, buffer_of(step), scale, count, query - first, lane);
    wait_for_copies();
    __syncthreads();
  }
  store_rows<D, M>(rows.dk, shape.scale, k + own, dqkv + at.k, shape.columns, first, lane, shape, aligned);
  store_rows<D, M>(rows.dv, 1.0f, v + own, dqkv + at.v, shape.columns, first, lane, shape, aligned);
}

}  // namespace starpipe::model::cuda::attention::bf16
