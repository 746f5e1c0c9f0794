// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codelets/cuda/kernels/attention_bf16.cuh"

namespace starpipe::model::cuda::attention::bf16 {

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
/// blockIdx.y is a block of Tiles<D>::rows queries.
template <int D>
__global__ void __launch_bounds__(block_threads)
    forward(Shape shape, Rows<const Bf16> q, Rows<const Bf16> kv, Bf16* y, float* log_sums) {
  using Block = QueryBlock<D>;
  constexpr int M = Block::M;
  constexpr int tile_keys = Block::tile_keys;
  const Block block{shape, kv};
  const Lane& lane = block.lane;
  // The two buffers, each a tile of keys followed by the tile of their values, are used in turn.
  const auto tile_of = [&](int key) {
    return block.q + (Tiles<D>::rows + key % (2 * tile_keys) * 2) * tile_stride<D>;
  };
  block.begin_queries(q);
  block.begin_keys_and_values(tile_of(0), 0);
  wait_for_copies();
  __syncthreads();
  RowFragments<D, M> queries;
  queries.load_from(block.q + block.own + lane.matrix_row<D>());

  const float scale = shape.scale * log2_e;
  Softmax<M> softmax;
  Sums<D, M> sums;
  for (int key = 0; key < block.keys; key += tile_keys) {
    if (key + tile_keys < block.keys) block.begin_keys_and_values(tile_of(key + tile_keys), key + tile_keys);
    const int offset = block.position - key;
    // The warp has a query, and one of its queries sees some key of the tile.
    if (offset + M * fragment_size > 0 && block.first < shape.queries) {
      const Bf16* const k = tile_of(key) + lane.matrix_row<D>();
      Accumulator scores[M][tile_keys / 8];
      multiply_rows<D>(queries, k, scores);
      if (offset < tile_keys - 1) mask<false>(scores, offset, lane);
      softmax.template apply<D>(scale, scores, sums);
      accumulate_tile<D>(scores, k + tile_keys * tile_stride<D>, sums);
    }
    wait_for_copies();
    __syncthreads();
  }

  sum_over_quad(softmax.sum);
  for_each_row<M>(block.first, lane, shape, [&](int m, int half, int query) {
    if (lane.column != 0) return;
    log_sums[block.at.row() + static_cast<std::size_t>(query)] =
        shape.scale * softmax.top[m][half] + logf(softmax.sum[m][half]);
  });
  divide_rows<D>(sums, softmax.sum);
  store_rows<D, M>(sums, 1.0f, block.q + block.own, Rows<Bf16>{block.at.y(y), shape.hidden}, shape.queries,
                   block.first, lane, shape);
}

}  // namespace starpipe::model::cuda::attention::bf16
