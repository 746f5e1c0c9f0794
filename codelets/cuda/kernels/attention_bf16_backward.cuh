// SPDX-License-Identifier: Apache-2.0
// B in two kernels, so that nothing is added atomically. Names are as in attention_fp32.cuh: p, dp, ds,
// delta. The queries' kernel goes over the keys twice, first for delta, a sum over all keys of a query, then
// for dq. The keys' kernel computes transposed products, [key][query]: so p and ds come out as A fragments
// for dv = p' dy and dk = ds' q.
#pragma once

#include "codelets/cuda/kernels/attention_bf16.cuh"
#include "starpipe/base/index.hpp"

namespace starpipe::model::cuda::attention::bf16 {

/// Registers of a warp of the queries' kernel, for its rows.
template <int D>
struct QueryRows {
  static constexpr int M = Tiles<D>::row_fragments;
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
/// heads + head; each blockIdx.y is a block of Tiles<D>::rows queries.
template <int D>
__global__ void __launch_bounds__(block_threads)
    backward_queries(Shape shape, Rows<const Bf16> q, Rows<const Bf16> kv, const float* log_sums,
                     const Bf16* dy, Rows<Bf16> dq, float* deltas) {
  using Block = QueryBlock<D>;
  constexpr int M = Block::M;
  constexpr int tile_keys = Block::tile_keys;
  const Block block{shape, kv};
  const Lane& lane = block.lane;
  const int tiles = static_cast<int>(ceil_div(static_cast<std::size_t>(block.keys), tile_keys));
  Bf16* const g = block.q + Tiles<D>::rows * tile_stride<D>;  // the tile of dy
  // Step s of 2 * tiles steps does tile s % tiles: the first `tiles` steps sum the deltas, the others dq.
  // Steps use the two buffers in turn. A buffer is a tile of keys, followed by the tile of their values.
  const auto tile_of = [&](int step) {
    return g + (Tiles<D>::rows + step % 2 * 2 * tile_keys) * tile_stride<D>;
  };
  const auto first_key_of = [&](int step) { return (step < tiles ? step : step - tiles) * tile_keys; };
  block.begin_queries(q);
  begin_load<D, Tiles<D>::rows>(g, {block.at.y(dy), shape.hidden}, block.block, shape.queries, shape);
  block.begin_keys_and_values(tile_of(0), 0);
  QueryRows<D> rows;
  for_each_row<M>(block.first, lane, shape, [&](int m, int half, int query) {
    rows.log_sums[m][half] = log2_e * log_sums[block.at.row() + static_cast<std::size_t>(query)];
  });
  wait_for_copies();
  __syncthreads();
  rows.q.load_from(block.q + block.own + lane.matrix_row<D>());
  rows.dy.load_from(g + block.own + lane.matrix_row<D>());

  const float scale = shape.scale * log2_e;
  for (int step = 0; step < 2 * tiles; ++step) {
    if (step + 1 < 2 * tiles) block.begin_keys_and_values(tile_of(step + 1), first_key_of(step + 1));
    if (step == tiles) sum_over_quad(rows.deltas);
    const int key = first_key_of(step);
    const int offset = block.position - key;
    // Number of the tile's keys that the warp's last query sees; 0 or less when it sees none.
    const int count = block.first < shape.queries
                          ? smaller(tile_keys, smaller(offset + M * fragment_size, block.keys - key))
                          : 0;
    const Bf16* const k = tile_of(step) + lane.matrix_row<D>();
    const Bf16* const v = k + tile_keys * tile_stride<D>;
    if (step < tiles) {
      add_keys<D, true>(rows, k, v, scale, count, offset, lane);
    } else {
      add_keys<D, false>(rows, k, v, scale, count, offset, lane);
    }
    wait_for_copies();
    __syncthreads();
  }

  for_each_row<M>(block.first, lane, shape, [&](int m, int half, int query) {
    if (lane.column == 0) deltas[block.at.row() + static_cast<std::size_t>(query)] = rows.deltas[m][half];
  });
  store_rows<D, M>(rows.dq, shape.scale, block.q + block.own, Rows<Bf16>{block.at.q(dq), dq.columns},
                   shape.queries, block.first, lane, shape);
}

/// Registers of a warp of the keys' kernel, for its rows.
template <int D>
struct KeyRows {
  static constexpr int M = Tiles<D>::row_fragments;
  RowFragments<D, M> k;
  RowFragments<D, M> v;
  Sums<D, M> dk;  ///< without the factor shape.scale
  Sums<D, M> dv;
};

/// Adds the contributions of a buffer's first `count` queries to the warp's dk and dv. `scale` has log2(e) as
/// a factor. `offset`: the position of the buffer's first query minus the warp's first key.
template <int D>
__device__ void add_queries(KeyRows<D>& rows, const float* buffer, float scale, int count, int offset,
                            const Lane& lane) {
  constexpr int M = Tiles<D>::row_fragments;
  const Bf16* const q = reinterpret_cast<const Bf16*>(buffer) + lane.matrix_row<D>();
  const Bf16* const g = reinterpret_cast<const Bf16*>(buffer + Tiles<D>::tile) + lane.matrix_row<D>();
  const float* const log_sums = buffer + 2 * Tiles<D>::tile + lane.column;
  const float* const deltas = log_sums + Tiles<D>::others;
#pragma unroll 1  // unrolled, it would need too many registers
  for (int at = larger(-offset, 0) / fragment_size * fragment_size; at < count; at += fragment_size) {
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
/// blockIdx.y is a block of Tiles<D>::rows keys. Queries behind the last are 0 in their tile, and so are
/// their dy, log_sums and deltas: they contribute nothing. The gradients are Bf16 or float.
template <int D, class Gradient>
__global__ void __launch_bounds__(block_threads)
    backward_keys(Shape shape, Rows<const Bf16> queries, Rows<const Bf16> kv, const float* log_sums,
                  const float* deltas, const Bf16* dy, Rows<Gradient> dkv) {
  constexpr int M = Tiles<D>::row_fragments;
  const Lane lane;
  // The place of the group's first query head. The others follow it in all arrays.
  const HeadPlace at{shape, blockIdx.x * static_cast<std::size_t>(shape.group)};
  const int block = static_cast<int>(blockIdx.y) * Tiles<D>::rows;  // the block's first key
  const int first = block + lane.warp * M * fragment_size;          // the warp's first key
  Bf16* const k = reinterpret_cast<Bf16*>(shared_floats());
  Bf16* const v = k + Tiles<D>::rows * tile_stride<D>;
  // A step does a tile of queries of one head: `tiles` steps for each head of the group. Steps use the two
  // buffers in turn.
  const int first_query =
      larger(block - shape.first_position(), 0);  // the first that sees a key of the block
  const int tiles =
      static_cast<int>(ceil_div(static_cast<std::size_t>(shape.queries - first_query), Tiles<D>::others));
  const int steps = shape.group * tiles;
  const auto first_query_of = [&](int step) { return first_query + step % tiles * Tiles<D>::others; };
  const auto buffer_of = [&](int step) {
    return shared_floats() + tile_floats<D, 2 * Tiles<D>::rows> +
           static_cast<std::size_t>(step % 2) * Tiles<D>::buffer;
  };
  const Bf16* const q = at.q(queries);
  const Bf16* const y = at.y(dy);
  const auto begin_queries = [&](int step) {
    const int query = first_query_of(step);
    const auto member = static_cast<std::size_t>(step / tiles);
    const std::size_t column = member * static_cast<std::size_t>(shape.size);
    float* const buffer = buffer_of(step);
    begin_load<D, Tiles<D>::others>(reinterpret_cast<Bf16*>(buffer), {q + column, queries.columns}, query,
                                    shape.queries, shape);
    begin_load<D, Tiles<D>::others>(reinterpret_cast<Bf16*>(buffer + Tiles<D>::tile),
                                    {y + column, shape.hidden}, query, shape.queries, shape);
    // The first `others` threads copy a log_sum each, the next `others` threads a delta each.
    const int i = static_cast<int>(threadIdx.x) % Tiles<D>::others;
    const float* const statistics = static_cast<int>(threadIdx.x) < Tiles<D>::others ? log_sums : deltas;
    if (static_cast<int>(threadIdx.x) >= 2 * Tiles<D>::others) return;
    const bool inside = query + i < shape.queries;
    copy_async<4>(buffer + 2 * Tiles<D>::tile + threadIdx.x,
                  statistics + at.row() + member * static_cast<std::size_t>(shape.queries) +
                      (inside ? static_cast<std::size_t>(query + i) : 0),
                  inside);
  };
  begin_load<D, Tiles<D>::rows>(k, {at.k(kv), kv.columns}, block, shape.keys, shape);
  begin_load<D, Tiles<D>::rows>(v, {at.v(kv), kv.columns}, block, shape.keys, shape);
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
    const int count = smaller(Tiles<D>::others, shape.queries - query);
    add_queries(rows, buffer_of(step), scale, count, shape.first_position() + query - first, lane);
    wait_for_copies();
    __syncthreads();
  }
  store_rows<D, M>(rows.dk, shape.scale, k + own, Rows<Gradient>{at.k(dkv), dkv.columns}, shape.keys, first,
                   lane, shape);
  store_rows<D, M>(rows.dv, 1.0f, v + own, Rows<Gradient>{at.v(dkv), dkv.columns}, shape.keys, first, lane,
                   shape);
}

}  // namespace starpipe::model::cuda::attention::bf16
