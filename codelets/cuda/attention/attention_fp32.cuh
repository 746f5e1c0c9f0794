// SPDX-License-Identifier: Apache-2.0
// Causal attention by tiles (Dao et al., arXiv 2205.14135): a block holds kTile rows of one head and meets
// the other side's rows kTile at a time. Each of its warps has kRows of its rows, and each lane one row of
// the other side, so that a score is one lane's and what a row sums, one warp's: no order depends on timing,
// nothing is atomic, and what is kept in memory grows linearly with the context.
//
// Tiles are as wide as D, the first of 32, 64 and 128 that holds a head's columns; what is beyond the columns
// or the context is 0. Keys after a query's own are masked, which includes those beyond the context.
#pragma once

#include "codelets/cuda/kernels/kernels.cuh"

namespace starpipe::model::cuda::attention {

inline constexpr int kTile = 32;
inline constexpr int kRows = kTile * kWarp / static_cast<int>(kThreads);  // of a warp
static_assert(kTile == kWarp && kRows * static_cast<int>(kThreads) == kTile * kWarp);

struct Shape {
  int context;
  int heads;
  int size;  ///< columns of a head
  float scale;
  std::size_t hidden;  ///< heads * size
};

/// Where a block's sequence and head lie.
struct Corner {
  std::size_t
      qkv;  ///< of its first query, in rows of 3 * hidden; keys and values follow hidden and 2 * hidden later
  std::size_t y;     ///< in rows of hidden
  std::size_t sums;  ///< in what has one float a row and head: [sequence][head][row]
};
STARPIPE_HOST_DEVICE inline Corner corner(const Shape& shape, std::size_t sequence_and_head) {
  const auto heads = static_cast<std::size_t>(shape.heads);
  const auto context = static_cast<std::size_t>(shape.context);
  const std::size_t sequence = sequence_and_head / heads;
  const std::size_t column = sequence_and_head % heads * static_cast<std::size_t>(shape.size);
  return {sequence * context * 3 * shape.hidden + column, sequence * context * shape.hidden + column,
          sequence_and_head * context};
}

/// Rows of a tile that lanes read each their own of: one float apart in their bank.
template <int D>
inline constexpr int kSkewed = D + 1;

/// Rows [first, first + kTile) of one head, `stride` apart in memory.
template <int D, int TileStride>
__device__ void load(float* tile, const float* head, std::size_t stride, int first, const Shape& shape) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * D; i += static_cast<int>(kThreads)) {
    const int row = i / D;
    const int column = i % D;
    const bool inside = first + row < shape.context && column < shape.size;
    tile[row * TileStride + column] =
        inside ? head[static_cast<std::size_t>(first + row) * stride + static_cast<std::size_t>(column)]
               : 0.0f;
  }
}

/// products[r] = the warp's row r of `rows` (D floats each) times the lane's row.
template <int D>
__device__ void dots(const float* rows, const float* lane_row, float (&products)[kRows]) {
  for (float& product : products) product = 0;
#pragma unroll 8
  for (int c = 0; c < D; ++c) {
    const float x = lane_row[c];
    for (int r = 0; r < kRows; ++r) products[r] += rows[r * D + c] * x;
  }
}

/// What a warp sums for its rows: lane l has the columns l, l + 32, ...
template <int D>
using Sums = float[kRows][D / kWarp];

/// sums[r] += weights[r][j] * tile[j] over the rows j of a skewed tile; `weights`: kTile floats a row.
template <int D>
__device__ void accumulate(const float* weights, const float* tile, int lane, Sums<D>& sums) {
  for (int j = 0; j < kTile; ++j) {
    for (int t = 0; t < D / kWarp; ++t) {
      const float x = tile[j * kSkewed<D> + lane + t * kWarp];
      for (int r = 0; r < kRows; ++r) sums[r][t] += weights[r * kTile + j] * x;
    }
  }
}

/// Writes factors[r] * sums[r] to the warp's rows, the first of which is `first`.
template <int D>
__device__ void store(const Sums<D>& sums, const float (&factors)[kRows], float* head, std::size_t stride,
                      int first, int lane, const Shape& shape) {
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < D / kWarp; ++t) {
      const int column = lane + t * kWarp;
      if (first + r >= shape.context || column >= shape.size) continue;
      head[static_cast<std::size_t>(first + r) * stride + static_cast<std::size_t>(column)] =
          factors[r] * sums[r][t];
    }
  }
}

/// Floats of shared memory: of forward, and of each of the backward kernels.
template <int D>
inline constexpr std::size_t kForwardShared = kTile*(D + 2 * kSkewed<D> + kTile);
template <int D>
inline constexpr std::size_t kBackwardShared = kTile*(2 * D + 2 * kSkewed<D> + 2 * kTile);

/// F, for the queries [kTile * blockIdx.y, ...) of the sequence and head blockIdx.x.
template <int D>
__global__ void __launch_bounds__(kThreads)
    forward(Shape shape, const float* qkv, float* y, float* log_sums) {
  float* const q = shared_floats();
  float* const k = q + kTile * D;
  float* const v = k + kTile * kSkewed<D>;
  float* const weights = v + kTile * kSkewed<D>;
  const Corner at = corner(shape, blockIdx.x);
  const int first = static_cast<int>(blockIdx.y) * kTile;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(threadIdx.x) / kWarp * kRows;  // the warp's first, in the tile
  load<D, D>(q, qkv + at.qkv, 3 * shape.hidden, first, shape);

  Sums<D> sums = {};
  OnlineSoftmax softmax[kRows];
  for (int key = 0; key <= first; key += kTile) {
    __syncthreads();  // all have done with the tiles before
    load<D, kSkewed<D>>(k, qkv + at.qkv + shape.hidden, 3 * shape.hidden, key, shape);
    load<D, kSkewed<D>>(v, qkv + at.qkv + 2 * shape.hidden, 3 * shape.hidden, key, shape);
    __syncthreads();
    float scores[kRows];
    dots<D>(q + row * D, k + lane * kSkewed<D>, scores);
    for (int r = 0; r < kRows; ++r) {
      const bool seen = key + lane <= first + row + r;
      const float score = seen ? shape.scale * scores[r] : -INFINITY;
      const float rescale = softmax[r].raise(warp_max(score));
      const float weight = expf(score - softmax[r].top);
      softmax[r].sum += warp_sum(weight);
      for (int t = 0; t < D / kWarp; ++t) sums[r][t] *= rescale;
      weights[(row + r) * kTile + lane] = weight;
    }
    __syncwarp();
    accumulate<D>(weights + row * kTile, v, lane, sums);
  }
  float factors[kRows];
  for (int r = 0; r < kRows; ++r) {
    factors[r] = 1.0f / softmax[r].sum;
    if (lane == 0 && first + row + r < shape.context) {
      log_sums[at.sums + static_cast<std::size_t>(first + row + r)] = softmax[r].log_sum_exp();
    }
  }
  store<D>(sums, factors, y + at.y, shape.hidden, first + row, lane, shape);
}

/// B, of the queries; row_sums[row] = sum over keys of probability times its gradient, for backward_keys.
template <int D>
__global__ void __launch_bounds__(kThreads)
    backward_queries(Shape shape, const float* qkv, const float* log_sums, const float* dy, float* dqkv,
                     float* row_sums) {
  float* const q = shared_floats();
  float* const g = q + kTile * D;  // of dy
  float* const k = g + kTile * D;
  float* const v = k + kTile * kSkewed<D>;
  float* const weights = v + kTile * kSkewed<D>;
  const Corner at = corner(shape, blockIdx.x);
  const int first = static_cast<int>(blockIdx.y) * kTile;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(threadIdx.x) / kWarp * kRows;
  load<D, D>(q, qkv + at.qkv, 3 * shape.hidden, first, shape);
  load<D, D>(g, dy + at.y, shape.hidden, first, shape);
  float log_sum[kRows];
  for (int r = 0; r < kRows; ++r) {
    const int query = first + row + r;
    log_sum[r] = query < shape.context ? log_sums[at.sums + static_cast<std::size_t>(query)] : 0.0f;
  }

  // The keys twice: the gradient of a score needs the whole row's sum.
  Sums<D> sums = {};
  float row_sum[kRows] = {};
  for (int sweep = 0; sweep < 2; ++sweep) {
    for (int key = 0; key <= first; key += kTile) {
      __syncthreads();
      load<D, kSkewed<D>>(k, qkv + at.qkv + shape.hidden, 3 * shape.hidden, key, shape);
      load<D, kSkewed<D>>(v, qkv + at.qkv + 2 * shape.hidden, 3 * shape.hidden, key, shape);
      __syncthreads();
      float scores[kRows];
      float slopes[kRows];  // of the probabilities
      dots<D>(q + row * D, k + lane * kSkewed<D>, scores);
      dots<D>(g + row * D, v + lane * kSkewed<D>, slopes);
      for (int r = 0; r < kRows; ++r) {
        const bool seen = key + lane <= first + row + r;
        const float p = seen ? expf(shape.scale * scores[r] - log_sum[r]) : 0.0f;
        if (sweep == 0) row_sum[r] += p * slopes[r];
        if (sweep == 1) weights[(row + r) * kTile + lane] = p * (slopes[r] - row_sum[r]);
      }
      if (sweep == 0) continue;
      __syncwarp();
      accumulate<D>(weights + row * kTile, k, lane, sums);
    }
    for (int r = 0; r < kRows && sweep == 0; ++r) row_sum[r] = warp_sum(row_sum[r]);
  }
  float factors[kRows];
  for (int r = 0; r < kRows; ++r) {
    factors[r] = shape.scale;
    if (lane == 0 && first + row + r < shape.context) {
      row_sums[at.sums + static_cast<std::size_t>(first + row + r)] = row_sum[r];
    }
  }
  store<D>(sums, factors, dqkv + at.qkv, 3 * shape.hidden, first + row, lane, shape);
}

/// B, of the keys [kTile * blockIdx.y, ...) and their values; after backward_queries.
template <int D>
__global__ void __launch_bounds__(kThreads)
    backward_keys(Shape shape, const float* qkv, const float* log_sums, const float* row_sums,
                  const float* dy, float* dqkv) {
  float* const k = shared_floats();
  float* const v = k + kTile * D;
  float* const q = v + kTile * D;
  float* const g = q + kTile * kSkewed<D>;  // of dy
  float* const probabilities = g + kTile * kSkewed<D>;
  float* const slopes = probabilities + kTile * kTile;  // of the scores
  const Corner at = corner(shape, blockIdx.x);
  const int first = static_cast<int>(blockIdx.y) * kTile;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(threadIdx.x) / kWarp * kRows;
  load<D, D>(k, qkv + at.qkv + shape.hidden, 3 * shape.hidden, first, shape);
  load<D, D>(v, qkv + at.qkv + 2 * shape.hidden, 3 * shape.hidden, first, shape);

  Sums<D> key_sums = {};
  Sums<D> value_sums = {};
  for (int query = first; query < shape.context; query += kTile) {
    __syncthreads();
    load<D, kSkewed<D>>(q, qkv + at.qkv, 3 * shape.hidden, query, shape);
    load<D, kSkewed<D>>(g, dy + at.y, shape.hidden, query, shape);
    __syncthreads();
    const bool inside = query + lane < shape.context;
    const std::size_t sums_at = at.sums + static_cast<std::size_t>(query + lane);
    const float log_sum = inside ? log_sums[sums_at] : 0.0f;
    const float row_sum = inside ? row_sums[sums_at] : 0.0f;
    float scores[kRows];
    float products[kRows];
    dots<D>(k + row * D, q + lane * kSkewed<D>, scores);
    dots<D>(v + row * D, g + lane * kSkewed<D>, products);
    for (int r = 0; r < kRows; ++r) {
      const bool seen = inside && first + row + r <= query + lane;
      const float p = seen ? expf(shape.scale * scores[r] - log_sum) : 0.0f;
      probabilities[(row + r) * kTile + lane] = p;
      slopes[(row + r) * kTile + lane] = p * (products[r] - row_sum);
    }
    __syncwarp();
    accumulate<D>(probabilities + row * kTile, g, lane, value_sums);
    accumulate<D>(slopes + row * kTile, q, lane, key_sums);
  }
  float ones[kRows];
  float scales[kRows];
  for (int r = 0; r < kRows; ++r) {
    ones[r] = 1;
    scales[r] = shape.scale;
  }
  float* const dkeys = dqkv + at.qkv + shape.hidden;
  store<D>(key_sums, scales, dkeys, 3 * shape.hidden, first + row, lane, shape);
  store<D>(value_sums, ones, dkeys + shape.hidden, 3 * shape.hidden, first + row, lane, shape);
}

}  // namespace starpipe::model::cuda::attention
