// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codelets/cuda/attention/attention_bf16.cuh"

namespace starpipe::model::cuda::attention::bf16 {

/// The tiles of F. As many as fit the registers: a warp's every load from shared memory serves all its rows.
template <int D>
struct Forward {
  static constexpr int kRowTiles = D <= 64 ? 2 : 1;  ///< of kStep rows, of a warp
  static constexpr int kRows = kWarps * kRowTiles * kStep;
  static constexpr int kKeys = D <= 64 ? 64 : 32;  ///< at a time
  static constexpr std::size_t kShared = kTileFloats<D, kRows + 2 * 2 * kKeys>;
};

/// Of a lane's rows: the largest score so far, and the sum over the lane's own columns relative to it.
template <int M>
struct Softmax {
  PerRow<M> top;
  PerRow<M> sum = {};

  __device__ Softmax() {
    for (auto& rows : top) rows[0] = rows[1] = -INFINITY;
  }

  /// Makes probabilities of scores, and brings `sums` to their scale. No row may have only masked scores so
  /// far.
  template <int D, int N>
  __device__ void apply(float scale, Product (&scores)[M][N], Sums<D, M>& sums) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = top[m][half];
#pragma unroll
        for (const Product& product : scores[m]) {
          most = fmaxf(most, fmaxf(product.at[2 * half], product.at[2 * half + 1]));
        }
        most = max_over_lanes(most);
        const float rescale = exp2_approximate(scale * (top[m][half] - most));
        top[m][half] = most;
        float total = rescale * sum[m][half];
#pragma unroll
        for (Product& product : scores[m]) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            product.at[i] = exp2_approximate(fmaf(scale, product.at[i], -scale * most));
            total += product.at[i];
          }
        }
        sum[m][half] = total;
#pragma unroll
        for (Product& product : sums[m]) {
          product.at[2 * half] *= rescale;
          product.at[2 * half + 1] *= rescale;
        }
      }
    }
  }
};

/// sums += probabilities * values; `values`: the lane's matrix_row().
template <int D, int M, int N>
__device__ void accumulate_tile(const Product (&probabilities)[M][N], const Bf16* values, Sums<D, M>& sums) {
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    Matrices weights[M];
#pragma unroll
    for (int m = 0; m < M; ++m) weights[m] = as_left(probabilities[m][n], probabilities[m][n + 1]);
    accumulate<D>(weights, values + n * 8 * kStride<D>, sums);
  }
}

template <int D, int M>
__device__ void divide_rows(Sums<D, M>& sums, const PerRow<M>& by) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const float factors[2] = {1.0f / by[m][0], 1.0f / by[m][1]};
#pragma unroll
    for (Product& product : sums[m]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) product.at[i] *= factors[i / 2];
    }
  }
}

/// F, as attention::forward, for Forward<D>::kRows queries.
template <int D>
__global__ void __launch_bounds__(kThreads)
    forward(Shape shape, bool vectors, const Bf16* qkv, Bf16* y, float* log_sums) {
  using Tiles = Forward<D>;
  constexpr int M = Tiles::kRowTiles;
  const Lane lane;
  const Corner at = corner(shape, blockIdx.x);
  // Those with the most keys first.
  const int block = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tiles::kRows;
  const int first = block + lane.warp * M * kStep;
  const int keys = at_most(shape.context, block + Tiles::kRows);
  const std::size_t stride = 3 * shape.hidden;
  Bf16* const q = reinterpret_cast<Bf16*>(shared_floats());
  const auto keys_at = [&](int key) {
    return q + (Tiles::kRows + key % (2 * Tiles::kKeys) * 2) * kStride<D>;
  };
  const auto begin_keys_and_values = [&](int key) {
    const Bf16* const head = qkv + at.qkv + shape.hidden;
    Bf16* const tile = keys_at(key);
    begin_load<D, Tiles::kKeys>(tile, head, stride, key, shape, vectors);
    begin_load<D, Tiles::kKeys>(tile + Tiles::kKeys * kStride<D>, head + shape.hidden, stride, key, shape,
                                vectors);
  };
  begin_load<D, Tiles::kRows>(q, qkv + at.qkv, stride, block, shape, vectors);
  begin_keys_and_values(0);
  wait_for_copies();
  __syncthreads();
  const int own = lane.warp * M * kStep * kStride<D>;
  Lefts<D, M> queries;
  queries.load_from(q + own + lane.matrix_row<D>());

  const float scale = shape.scale * kLog2E;
  Softmax<M> softmax;
  Sums<D, M> sums;
  for (int key = 0; key < keys; key += Tiles::kKeys) {
    if (key + Tiles::kKeys < keys) begin_keys_and_values(key + Tiles::kKeys);
    const int ahead = first - key;
    if (ahead + M * kStep > 0 && first < keys) {
      const Bf16* const k = keys_at(key) + lane.matrix_row<D>();
      Product scores[M][Tiles::kKeys / 8];
      multiply_rows<D>(queries, k, scores);
      if (ahead < Tiles::kKeys - 1) mask<false>(scores, ahead, lane);
      softmax.template apply<D>(scale, scores, sums);
      accumulate_tile<D>(scores, k + Tiles::kKeys * kStride<D>, sums);
    }
    wait_for_copies();
    __syncthreads();
  }

  sum_over_lanes(softmax.sum);
  for_rows<M>(first, lane, shape, [&](int m, int half, int query) {
    if (lane.column != 0) return;
    log_sums[at.sums + static_cast<std::size_t>(query)] =
        shape.scale * softmax.top[m][half] + logf(softmax.sum[m][half]);
  });
  divide_rows<D>(sums, softmax.sum);
  store_rows<D, M>(sums, 1.0f, q + own, y + at.y, shape.hidden, first, lane, shape, vectors);
}

}  // namespace starpipe::model::cuda::attention::bf16
