// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codelets/cuda/kernels/attention_bf16.cuh"

namespace starpipe::model::cuda::attention::bf16 {

/// The tiles of F: as many rows a warp as its registers hold, since each load of a key or value from shared
/// memory serves all rows of the warp.
template <int D>
struct Forward {
  static constexpr int row_fragments = D <= 64 ? 2 : 1;  ///< A fragments of a warp, 16 queries each
  static constexpr int rows = block_warps * row_fragments * fragment_size;  ///< queries of a thread block
  static constexpr int keys = D <= 64 ? 64 : 32;                            ///< keys of a tile
  /// Floats of shared memory: the queries, and two buffers for a tile of keys and one of values.
  static constexpr std::size_t shared = tile_floats<D, rows + 2 * 2 * keys>;
};

/// Online softmax of the rows in which a lane has elements. A probability relative to a score t is
/// exp(scale (score - t)).
template <int M>
struct Softmax {
  PerRow<M> top;       ///< the row's largest score so far, not scaled
  PerRow<M> sum = {};  ///< of the probabilities in the lane's own columns so far, relative to `top`

  __device__ Softmax() {
    for (auto& rows : top) rows[0] = rows[1] = -INFINITY;
  }

  /// Turns a tile's scores into probabilities relative to the new `top`, adds them to `sum`, and rescales
  /// `sum` and `sums` to the new `top`. `scale` has log2(e) as a factor. Every row must have a score that is
  /// not masked, in this tile or in one before.
  template <int D, int N>
  __device__ void apply(float scale, Accumulator (&scores)[M][N], Sums<D, M>& sums) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float max = top[m][half];
#pragma unroll
        for (const Accumulator& score : scores[m]) {
          max = fmaxf(max, fmaxf(score.at[2 * half], score.at[2 * half + 1]));
        }
        max = max_over_quad(max);
        const float rescale = exp2_approximate(scale * (top[m][half] - max));
        top[m][half] = max;
        float total = rescale * sum[m][half];
#pragma unroll
        for (Accumulator& score : scores[m]) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            score.at[i] = exp2_approximate(fmaf(scale, score.at[i], -scale * max));
            total += score.at[i];
          }
        }
        sum[m][half] = total;
#pragma unroll
        for (Accumulator& row_sum : sums[m]) {
          row_sum.at[2 * half] *= rescale;
          row_sum.at[2 * half + 1] *= rescale;
        }
      }
    }
  }
};

/// sums += probabilities * values. `values`: a tile of 8 * N values, plus this lane's matrix_row().
template <int D, int M, int N>
__device__ void accumulate_tile(const Accumulator (&probabilities)[M][N], const Bf16* values,
                                Sums<D, M>& sums) {
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    FragmentA weights[M];
#pragma unroll
    for (int m = 0; m < M; ++m) weights[m] = to_fragment_a(probabilities[m][n], probabilities[m][n + 1]);
    accumulate<D>(weights, values + n * 8 * tile_stride<D>, sums);
  }
}

/// Divides each row of `sums` by its number in `by`.
template <int D, int M>
__device__ void divide_rows(Sums<D, M>& sums, const PerRow<M>& by) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const float factors[2] = {1.0f / by[m][0], 1.0f / by[m][1]};
#pragma unroll
    for (Accumulator& row_sum : sums[m]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) row_sum.at[i] *= factors[i / 2];
    }
  }
}

/// F: the same function as attention::forward() for fp32. blockIdx.x is sequence * heads + head; each
/// blockIdx.y is a block of Forward<D>::rows queries. `aligned` is as in begin_load().
template <int D>
__global__ void __launch_bounds__(block_threads)
    forward(Shape shape, bool aligned, const Bf16* qkv, Bf16* y, float* log_sums) {
  using Tiles = Forward<D>;
  constexpr int M = Tiles::row_fragments;
  const Lane lane;
  const HeadOffsets at = head_offsets(shape, blockIdx.x);
  // Position of the block's first query. Blocks start in the order of their numbers, so the smallest
  // blockIdx.y gets the last queries: they have the most keys.
  const int block = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tiles::rows;
  const int first = block + lane.warp * M * fragment_size;       // position of the warp's first query
  const int keys = smaller(shape.context, block + Tiles::rows);  // the block's queries see keys [0, keys)
  Bf16* const q = reinterpret_cast<Bf16*>(shared_floats());
  // The tile of keys [key, key + Tiles::keys), followed by the tile of their values. The two buffers are used
  // in turn.
  const auto tile_of = [&](int key) {
    return q + (Tiles::rows + key % (2 * Tiles::keys) * 2) * tile_stride<D>;
  };
  const auto begin_keys_and_values = [&](int key) {
    Bf16* const tile = tile_of(key);
    begin_load<D, Tiles::keys>(tile, qkv + at.k, shape.columns, key, shape, aligned);
    begin_load<D, Tiles::keys>(tile + Tiles::keys * tile_stride<D>, qkv + at.v, shape.columns, key, shape,
                               aligned);
  };
  begin_load<D, Tiles::rows>(q, qkv + at.q, shape.columns, block, shape, aligned);
  begin_keys_and_values(0);
  wait_for_copies();
  __syncthreads();
  // Offset of the warp's rows in the tile of queries.
  const int own = lane.warp * M * fragment_size * tile_stride<D>;
  RowFragments<D, M> queries;
  queries.load_from(q + own + lane.matrix_row<D>());

  const float scale = shape.scale * log2_e;
  Softmax<M> softmax;
  Sums<D, M> sums;
  for (int key = 0; key < keys; key += Tiles::keys) {
    if (key + Tiles::keys < keys) begin_keys_and_values(key + Tiles::keys);
    const int offset = first - key;
    // Some query of the warp is in the context and sees some key of the tile.
    if (offset + M * fragment_size > 0 && first < keys) {
      const Bf16* const k = tile_of(key) + lane.matrix_row<D>();
      Accumulator scores[M][Tiles::keys / 8];
      multiply_rows<D>(queries, k, scores);
      if (offset < Tiles::keys - 1) mask<false>(scores, offset, lane);
      softmax.template apply<D>(scale, scores, sums);
      accumulate_tile<D>(scores, k + Tiles::keys * tile_stride<D>, sums);
    }
    wait_for_copies();
    __syncthreads();
  }

  sum_over_quad(softmax.sum);
  for_each_row<M>(first, lane, shape, [&](int m, int half, int query) {
    if (lane.column != 0) return;
    log_sums[at.row + static_cast<std::size_t>(query)] =
        shape.scale * softmax.top[m][half] + logf(softmax.sum[m][half]);
  });
  divide_rows<D>(sums, softmax.sum);
  store_rows<D, M>(sums, 1.0f, q + own, y + at.output, shape.hidden, first, lane, shape, aligned);
}

}  // namespace starpipe::model::cuda::attention::bf16
