// SPDX-License-Identifier: Apache-2.0
// Two kernels, so that nothing is added atomically: of the queries, which goes over the keys twice, since the
// slope of a score needs the sum over its row of probability times slope; and of the keys, where all products
// are transposed, so that what is rounded is a left factor there too.
#pragma once

#include "codelets/cuda/attention/attention_bf16.cuh"

namespace starpipe::model::cuda::attention::bf16 {

/// The tiles of the queries' kernel.
template <int D>
struct BackwardQueries {
  static constexpr int kRowTiles = D <= 64 ? 2 : 1;  ///< of kStep queries, of a warp
  static constexpr int kRows = kWarps * kRowTiles * kStep;
  static constexpr int kKeys = D <= 64 ? 64 : 32;  ///< at a time
  static constexpr std::size_t kShared = kTileFloats<D, 2 * kRows + 2 * 2 * kKeys>;
};

/// What the queries' kernel knows of a warp's rows.
template <int D>
struct QueryRows {
  static constexpr int M = BackwardQueries<D>::kRowTiles;
  Lefts<D, M> q;
  Lefts<D, M> dy;
  PerRow<M> log_sums = {};  ///< of powers of 2
  PerRow<M> row_sums = {};  ///< of probability times slope
  Sums<D, M> dq;
};

/// Meets `count` keys of a tile and their values, for the row sums or, when those are known, for dq. `ahead`:
/// by how much the warp's first query is behind the first key.
template <int D, bool ForRowSums>
__device__ void meet_keys(QueryRows<D>& rows, const Bf16* k, const Bf16* v, float scale, int count, int ahead,
                          const Lane& lane) {
  constexpr int M = QueryRows<D>::M;
#pragma unroll 1  // for the registers
  for (int at = 0; at < count; at += kStep) {
    Product scores[M][2];
    Product slopes[M][2];  // of the probabilities, then of the scores
    multiply_rows<D>(rows.q, k + at * kStride<D>, scores);
    multiply_rows<D>(rows.dy, v + at * kStride<D>, slopes);
    if (ahead - at < kStep - 1) mask<false>(scores, ahead - at, lane);
    Matrices weights[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float p = exp2_approximate(fmaf(scale, scores[m][n].at[i], -rows.log_sums[m][i / 2]));
          float& slope = slopes[m][n].at[i];
          if (ForRowSums) rows.row_sums[m][i / 2] += p * slope;
          slope = p * (slope - rows.row_sums[m][i / 2]);
        }
      }
      weights[m] = as_left(slopes[m][0], slopes[m][1]);
    }
    if (!ForRowSums) accumulate<D>(weights, k + at * kStride<D>, rows.dq);
  }
}

/// B, of the queries, as attention::backward_queries, for BackwardQueries<D>::kRows of them.
template <int D>
__global__ void __launch_bounds__(kThreads)
    backward_queries(Shape shape, bool vectors, const Bf16* qkv, const float* log_sums, const Bf16* dy,
                     Bf16* dqkv, float* row_sums) {
  using Tiles = BackwardQueries<D>;
  constexpr int M = Tiles::kRowTiles;
  const Lane lane;
  const Corner at = corner(shape, blockIdx.x);
  // Those with the most keys first.
  const int block = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tiles::kRows;
  const int first = block + lane.warp * M * kStep;
  const int keys = at_most(shape.context, block + Tiles::kRows);
  const int tiles = static_cast<int>(parts(static_cast<std::size_t>(keys), Tiles::kKeys));
  const std::size_t stride = 3 * shape.hidden;
  Bf16* const q = reinterpret_cast<Bf16*>(shared_floats());
  Bf16* const g = q + Tiles::kRows * kStride<D>;  // of dy
  const auto keys_of = [&](int step) {
    return g + (Tiles::kRows + step % 2 * 2 * Tiles::kKeys) * kStride<D>;
  };
  const auto first_key_of = [&](int step) { return (step < tiles ? step : step - tiles) * Tiles::kKeys; };
  const auto begin_keys_and_values = [&](int step) {
    const Bf16* const head = qkv + at.qkv + shape.hidden;
    Bf16* const tile = keys_of(step);
    begin_load<D, Tiles::kKeys>(tile, head, stride, first_key_of(step), shape, vectors);
    begin_load<D, Tiles::kKeys>(tile + Tiles::kKeys * kStride<D>, head + shape.hidden, stride,
                                first_key_of(step), shape, vectors);
  };
  begin_load<D, Tiles::kRows>(q, qkv + at.qkv, stride, block, shape, vectors);
  begin_load<D, Tiles::kRows>(g, dy + at.y, shape.hidden, block, shape, vectors);
  begin_keys_and_values(0);
  QueryRows<D> rows;
  for_rows<M>(first, lane, shape, [&](int m, int half, int query) {
    rows.log_sums[m][half] = kLog2E * log_sums[at.sums + static_cast<std::size_t>(query)];
  });
  wait_for_copies();
  __syncthreads();
  const int own = lane.warp * M * kStep * kStride<D>;
  rows.q.load_from(q + own + lane.matrix_row<D>());
  rows.dy.load_from(g + own + lane.matrix_row<D>());

  const float scale = shape.scale * kLog2E;
  for (int step = 0; step < 2 * tiles; ++step) {
    if (step + 1 < 2 * tiles) begin_keys_and_values(step + 1);
    if (step == tiles) sum_over_lanes(rows.row_sums);
    const int key = first_key_of(step);
    const int ahead = first - key;
    const int count = first < keys ? at_most(Tiles::kKeys, at_most(ahead + M * kStep, keys - key)) : 0;
    const Bf16* const k = keys_of(step) + lane.matrix_row<D>();
    const Bf16* const v = k + Tiles::kKeys * kStride<D>;
    if (step < tiles) {
      meet_keys<D, true>(rows, k, v, scale, count, ahead, lane);
    } else {
      meet_keys<D, false>(rows, k, v, scale, count, ahead, lane);
    }
    wait_for_copies();
    __syncthreads();
  }

  for_rows<M>(first, lane, shape, [&](int m, int half, int query) {
    if (lane.column == 0) row_sums[at.sums + static_cast<std::size_t>(query)] = rows.row_sums[m][half];
  });
  store_rows<D, M>(rows.dq, shape.scale, q + own, dqkv + at.qkv, stride, first, lane, shape, vectors);
}

/// The tiles of the keys' kernel.
template <int D>
struct BackwardKeys {
  static constexpr int kRowTiles = D <= 64 ? 2 : 1;  ///< of kStep keys, of a warp
  static constexpr int kRows = kWarps * kRowTiles * kStep;
  static constexpr int kQueries = D <= 64 ? 64 : 32;  ///< at a time
  static constexpr std::size_t kTile = kTileFloats<D, kQueries>;
  static constexpr std::size_t kStage = 2 * kTile + 2 * kQueries;  ///< floats
  static constexpr std::size_t kShared = kTileFloats<D, 2 * kRows> + 2 * kStage;
  static_assert(kRows % kQueries == 0);
  static_assert(kQueries % kWarp == 0 && 2 * kQueries <= int{kThreads});  // whole warps copy all sums
};

/// What the keys' kernel knows of a warp's rows.
template <int D>
struct KeyRows {
  static constexpr int M = BackwardKeys<D>::kRowTiles;
  Lefts<D, M> k;
  Lefts<D, M> v;
  Sums<D, M> dk;
  Sums<D, M> dv;
};

/// Meets `count` queries of a stage. `ahead`: by how much the first of them is behind the warp's first key.
template <int D>
__device__ void meet_queries(KeyRows<D>& rows, const float* stage, float scale, int count, int ahead,
                             const Lane& lane) {
  using Tiles = BackwardKeys<D>;
  constexpr int M = Tiles::kRowTiles;
  const Bf16* const q = reinterpret_cast<const Bf16*>(stage) + lane.matrix_row<D>();
  const Bf16* const g = reinterpret_cast<const Bf16*>(stage + Tiles::kTile) + lane.matrix_row<D>();
  const float* const log_sums = stage + 2 * Tiles::kTile + lane.column;
  const float* const row_sums = log_sums + Tiles::kQueries;
#pragma unroll 1  // for the registers
  for (int at = ahead < 0 ? -ahead : 0; at < count; at += kStep) {
    Product p[M][2];       // scores, then probabilities
    Product slopes[M][2];  // of the probabilities, then of the scores
    multiply_rows<D>(rows.k, q + at * kStride<D>, p);
    multiply_rows<D>(rows.v, g + at * kStride<D>, slopes);
    if (ahead + at < M * kStep - 1) mask<true>(p, ahead + at, lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const float log_sum = kLog2E * log_sums[at + n * 8 + side];
        const float row_sum = row_sums[at + n * 8 + side];
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int i = side; i < 4; i += 2) {
            p[m][n].at[i] = exp2_approximate(fmaf(scale, p[m][n].at[i], -log_sum));
            slopes[m][n].at[i] = p[m][n].at[i] * (slopes[m][n].at[i] - row_sum);
          }
        }
      }
    }
    Matrices weights[2][M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      weights[0][m] = as_left(p[m][0], p[m][1]);
      weights[1][m] = as_left(slopes[m][0], slopes[m][1]);
    }
    accumulate<D>(weights[0], g + at * kStride<D>, rows.dv);
    accumulate<D>(weights[1], q + at * kStride<D>, rows.dk);
  }
}

/// B, of the keys and values, as attention::backward_keys, for BackwardKeys<D>::kRows of them; after
/// backward_queries. Queries beyond the context are 0, and so are their sums and what they add.
template <int D>
__global__ void __launch_bounds__(kThreads)
    backward_keys(Shape shape, bool vectors, const Bf16* qkv, const float* log_sums, const float* row_sums,
                  const Bf16* dy, Bf16* dqkv) {
  using Tiles = BackwardKeys<D>;
  constexpr int M = Tiles::kRowTiles;
  const Lane lane;
  const Corner at = corner(shape, blockIdx.x);
  const int block = static_cast<int>(blockIdx.y) * Tiles::kRows;
  const int first = block + lane.warp * M * kStep;
  const std::size_t stride = 3 * shape.hidden;
  Bf16* const k = reinterpret_cast<Bf16*>(shared_floats());
  Bf16* const v = k + Tiles::kRows * kStride<D>;
  const auto stage_of = [&](int query) {
    return shared_floats() + kTileFloats<D, 2 * Tiles::kRows> +
           static_cast<std::size_t>(query / Tiles::kQueries % 2) * Tiles::kStage;
  };
  const auto begin_queries = [&](int query) {
    float* const stage = stage_of(query);
    begin_load<D, Tiles::kQueries>(reinterpret_cast<Bf16*>(stage), qkv + at.qkv, stride, query, shape,
                                   vectors);
    begin_load<D, Tiles::kQueries>(reinterpret_cast<Bf16*>(stage + Tiles::kTile), dy + at.y, shape.hidden,
                                   query, shape, vectors);
    const int i = static_cast<int>(threadIdx.x) % Tiles::kQueries;
    const float* const sums = static_cast<int>(threadIdx.x) < Tiles::kQueries ? log_sums : row_sums;
    if (static_cast<int>(threadIdx.x) >= 2 * Tiles::kQueries) return;
    const bool inside = query + i < shape.context;
    copy_async<4>(stage + 2 * Tiles::kTile + threadIdx.x,
                  sums + at.sums + (inside ? static_cast<std::size_t>(query + i) : 0), inside);
  };
  Bf16* const dkeys = dqkv + at.qkv + shape.hidden;
  const Bf16* const keys = qkv + at.qkv + shape.hidden;
  begin_load<D, Tiles::kRows>(k, keys, stride, block, shape, vectors);
  begin_load<D, Tiles::kRows>(v, keys + shape.hidden, stride, block, shape, vectors);
  begin_queries(block);
  wait_for_copies();
  __syncthreads();
  const int own = lane.warp * M * kStep * kStride<D>;
  KeyRows<D> rows;
  rows.k.load_from(k + own + lane.matrix_row<D>());
  rows.v.load_from(v + own + lane.matrix_row<D>());

  const float scale = shape.scale * kLog2E;
  for (int query = block; query < shape.context; query += Tiles::kQueries) {
    if (query + Tiles::kQueries < shape.context) begin_queries(query + Tiles::kQueries);
    const int count = at_most(Tiles::kQueries, shape.context - query);
    meet_queries(rows, stage_of(query), scale, count, query - first, lane);
    wait_for_copies();
    __syncthreads();
  }
  store_rows<D, M>(rows.dk, shape.scale, k + own, dkeys, stride, first, lane, shape, vectors);
  store_rows<D, M>(rows.dv, 1.0f, v + own, dkeys + shape.hidden, stride, first, lane, shape, vectors);
}

}  // namespace starpipe::model::cuda::attention::bf16
