// SPDX-License-Identifier: Apache-2.0
// Causal attention in fp32 by tiles (FlashAttention: Dao et al., arXiv 2205.14135). A thread block keeps a
// tile of 32 rows of one head: queries, or in one of B's kernels keys and values. It goes over the rows of
// the other side, keys and values or queries, a tile of 32 rows at a time. Each of its 8 warps has 4 of the
// block's rows, and lane l has row l of the other side's tile. So one lane computes each score, and one warp
// sums each row, in a fixed order and without atomic operations. Memory grows linearly with the context.
//
// Tiles are D columns wide: the smallest of 32, 64 and 128 that holds a head's columns. Columns beyond the
// head and rows behind the last are 0 in a tile. The causal mask removes every key later than its query, and
// so all keys behind the last too.
//
// Names in B: p are the probabilities of a query's keys, dp = dy v' their gradients, and ds = p (dp - delta)
// the gradients of the scaled scores. delta of a query is the sum of p dp over its keys.
#pragma once

#include "codelets/cuda/kernels/launch.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "codelets/cuda/kernels/shape.cuh"

namespace starpipe::model::cuda::attention {

inline constexpr int tile_rows = 32;
/// Rows of a warp.
inline constexpr int warp_rows = tile_rows * warp_size / static_cast<int>(default_threads);
static_assert(tile_rows == warp_size &&
              warp_rows * static_cast<int>(default_threads) == tile_rows * warp_size);

/// Floats from row to row of a tile in which each lane reads a row of its own. With one float more than D,
/// the same column of the 32 rows lies in 32 different banks.
template <int D>
inline constexpr int skewed_stride = D + 1;

/// Loads rows [first, first + tile_rows) of a head, which has `rows` rows, into a tile. `head`: the head's
/// columns in the sequence's first row; `stride`: floats from row to row there.
template <int D, int TileStride>
__device__ void load(float* tile, const float* head, std::size_t stride, int first, int rows,
                     const Shape& shape) {
  for (int i = static_cast<int>(threadIdx.x); i < tile_rows * D; i += static_cast<int>(default_threads)) {
    const int row = i / D;
    const int column = i % D;
    const bool inside = first + row < rows && column < shape.size;
    tile[row * TileStride + column] =
        inside ? head[static_cast<std::size_t>(first + row) * stride + static_cast<std::size_t>(column)]
               : 0.0f;
  }
}

/// products[r] = the dot product of the warp's row r in `rows` (D floats from row to row) and the lane's row.
template <int D>
__device__ void dots(const float* rows, const float* lane_row, float (&products)[warp_rows]) {
  for (float& product : products) product = 0;
#pragma unroll 8
  for (int c = 0; c < D; ++c) {
    const float x = lane_row[c];
    for (int r = 0; r < warp_rows; ++r) products[r] += rows[r * D + c] * x;
  }
}

/// A lane's part of the D columns that a warp sums for each of its rows: sums[r][t] is column lane + 32 t.
template <int D>
using Sums = float[warp_rows][D / warp_size];

/// sums[r] += the sum over rows j of weights[r][j] * tile[j]. `weights`: tile_rows floats from row to row;
/// `tile`: skewed_stride<D> floats from row to row.
template <int D>
__device__ void accumulate(const float* weights, const float* tile, int lane, Sums<D>& sums) {
  for (int j = 0; j < tile_rows; ++j) {
    for (int t = 0; t < D / warp_size; ++t) {
      const float x = tile[j * skewed_stride<D> + lane + t * warp_size];
      for (int r = 0; r < warp_rows; ++r) sums[r][t] += weights[r * tile_rows + j] * x;
    }
  }
}

/// Stores factor * sums[r] as row first + r of the head, which has `rows` rows, for the warp's rows r.
template <int D>
__device__ void store(const Sums<D>& sums, float factor, float* head, std::size_t stride, int first, int rows,
                      int lane, const Shape& shape) {
  for (int r = 0; r < warp_rows; ++r) {
    for (int t = 0; t < D / warp_size; ++t) {
      const int column = lane + t * warp_size;
      if (first + r >= rows || column >= shape.size) continue;
      head[static_cast<std::size_t>(first + r) * stride + static_cast<std::size_t>(column)] =
          factor * sums[r][t];
    }
  }
}

/// Floats of shared memory of forward(), and of each of the two backward kernels.
template <int D>
inline constexpr std::size_t forward_shared = tile_rows*(D + 2 * skewed_stride<D> + tile_rows);
template <int D>
inline constexpr std::size_t backward_shared = tile_rows*(2 * D + 2 * skewed_stride<D> + 2 * tile_rows);

// The grid of all three kernels: blockIdx.y is the tile of rows that the block keeps, blockIdx.x is sequence
// * heads + head. Heads are query heads, in backward_keys() heads of keys and values. Arrays are as Shape
// describes them, with k and v side by side in the rows `kv`; log_sums and deltas have one float per row and
// query head, [sequence][head][row]. q, kv and their gradients may be parts of wider rows.

/// F: y = softmax(scale q k') v under the causal mask, and log_sums, the log-sum-exp of each query's scaled
/// scores.
template <int D>
__global__ void __launch_bounds__(default_threads)
    forward(Shape shape, Rows<const float> queries, Rows<const float> kv, float* y, float* log_sums) {
  float* const q = shared_floats();
  float* const k = q + tile_rows * D;
  float* const v = k + tile_rows * skewed_stride<D>;
  float* const weights = v + tile_rows * skewed_stride<D>;
  const HeadPlace at{shape, blockIdx.x};
  const int first = static_cast<int>(blockIdx.y) * tile_rows;
  const int first_key = shape.first_position() + first;  // the position of the block's first query
  const int last_key = smaller(first_key + tile_rows, shape.keys);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int row = static_cast<int>(threadIdx.x) / warp_size * warp_rows;  // the warp's first row in the tile
  load<D, D>(q, at.q(queries), queries.columns, first, shape.queries, shape);
  const float* const head_k = at.k(kv);  // out of the loop, since they divide
  const float* const head_v = at.v(kv);

  Sums<D> sums = {};
  OnlineSoftmax softmax[warp_rows];
  for (int key = 0; key < last_key; key += tile_rows) {
    __syncthreads();  // until all warps have read the tiles before
    load<D, skewed_stride<D>>(k, head_k, kv.columns, key, shape.keys, shape);
    load<D, skewed_stride<D>>(v, head_v, kv.columns, key, shape.keys, shape);
    __syncthreads();
    float scores[warp_rows];
    dots<D>(q + row * D, k + lane * skewed_stride<D>, scores);
    for (int r = 0; r < warp_rows; ++r) {
      const bool seen = key + lane <= first_key + row + r;
      const float score = seen ? shape.scale * scores[r] : -INFINITY;
      const float rescale = softmax[r].raise(warp_max(score));
      const float weight = expf(score - softmax[r].top);
      softmax[r].sum += warp_sum(weight);
      for (int t = 0; t < D / warp_size; ++t) sums[r][t] *= rescale;
      weights[(row + r) * tile_rows + lane] = weight;
    }
    __syncwarp();
    accumulate<D>(weights + row * tile_rows, v, lane, sums);
  }
  for (int r = 0; r < warp_rows; ++r) {
    const float factor = 1.0f / softmax[r].sum;
    for (float& sum : sums[r]) sum *= factor;
    if (lane == 0 && first + row + r < shape.queries) {
      log_sums[at.row() + static_cast<std::size_t>(first + row + r)] = softmax[r].log_sum_exp();
    }
  }
  store<D>(sums, 1.0f, at.y(y), shape.hidden, first + row, shape.queries, lane, shape);
}

/// B for the queries: writes dq, and the deltas, which backward_keys() reads.
template <int D>
__global__ void __launch_bounds__(default_threads)
    backward_queries(Shape shape, Rows<const float> queries, Rows<const float> kv, const float* log_sums,
                     const float* dy, Rows<float> dq, float* deltas) {
  float* const q = shared_floats();
  float* const g = q + tile_rows * D;  // the tile of dy
  float* const k = g + tile_rows * D;
  float* const v = k + tile_rows * skewed_stride<D>;
  float* const weights = v + tile_rows * skewed_stride<D>;
  const HeadPlace at{shape, blockIdx.x};
  const int first = static_cast<int>(blockIdx.y) * tile_rows;
  const int first_key = shape.first_position() + first;  // the position of the block's first query
  const int last_key = smaller(first_key + tile_rows, shape.keys);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int row = static_cast<int>(threadIdx.x) / warp_size * warp_rows;
  load<D, D>(q, at.q(queries), queries.columns, first, shape.queries, shape);
  const float* const head_k = at.k(kv);  // out of the loop, since they divide
  const float* const head_v = at.v(kv);
  load<D, D>(g, at.y(dy), shape.hidden, first, shape.queries, shape);
  float log_sum[warp_rows];
  for (int r = 0; r < warp_rows; ++r) {
    const int query = first + row + r;
    log_sum[r] = query < shape.queries ? log_sums[at.row() + static_cast<std::size_t>(query)] : 0.0f;
  }

  // Two sweeps over the keys, since ds needs delta, a sum over all keys: sweep 0 sums delta, sweep 1 sums dq.
  Sums<D> sums = {};
  float delta[warp_rows] = {};
  for (int sweep = 0; sweep < 2; ++sweep) {
    for (int key = 0; key < last_key; key += tile_rows) {
      __syncthreads();
      load<D, skewed_stride<D>>(k, head_k, kv.columns, key, shape.keys, shape);
      load<D, skewed_stride<D>>(v, head_v, kv.columns, key, shape.keys, shape);
      __syncthreads();
      float scores[warp_rows];
      float dp[warp_rows];
      dots<D>(q + row * D, k + lane * skewed_stride<D>, scores);
      dots<D>(g + row * D, v + lane * skewed_stride<D>, dp);
      for (int r = 0; r < warp_rows; ++r) {
        const bool seen = key + lane <= first_key + row + r;
        const float p = seen ? expf(shape.scale * scores[r] - log_sum[r]) : 0.0f;
        if (sweep == 0) delta[r] += p * dp[r];
        if (sweep == 1) weights[(row + r) * tile_rows + lane] = p * (dp[r] - delta[r]);
      }
      if (sweep == 0) continue;
      __syncwarp();
      accumulate<D>(weights + row * tile_rows, k, lane, sums);
    }
    for (int r = 0; r < warp_rows && sweep == 0; ++r) delta[r] = warp_sum(delta[r]);
  }
  for (int r = 0; r < warp_rows; ++r) {
    if (lane == 0 && first + row + r < shape.queries) {
      deltas[at.row() + static_cast<std::size_t>(first + row + r)] = delta[r];
    }
  }
  store<D>(sums, shape.scale, at.q(dq), dq.columns, first + row, shape.queries, lane, shape);
}

/// B for the keys and values: writes dk and dv, summed over the query heads of the group. Runs after
/// backward_queries().
template <int D>
__global__ void __launch_bounds__(default_threads)
    backward_keys(Shape shape, Rows<const float> queries, Rows<const float> kv, const float* log_sums,
                  const float* deltas, const float* dy, Rows<float> dkv) {
  float* const k = shared_floats();
  float* const v = k + tile_rows * D;
  float* const q = v + tile_rows * D;
  float* const g = q + tile_rows * skewed_stride<D>;  // the tile of dy
  float* const p_tile = g + tile_rows * skewed_stride<D>;
  float* const ds_tile = p_tile + tile_rows * tile_rows;
  const auto group = static_cast<std::size_t>(shape.group);
  const HeadPlace keys{shape, blockIdx.x * group};
  const int first = static_cast<int>(blockIdx.y) * tile_rows;
  const int position = shape.first_position();
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int row = static_cast<int>(threadIdx.x) / warp_size * warp_rows;
  load<D, D>(k, keys.k(kv), kv.columns, first, shape.keys, shape);
  load<D, D>(v, keys.v(kv), kv.columns, first, shape.keys, shape);

  Sums<D> dk = {};
  Sums<D> dv = {};
  for (std::size_t member = 0; member < group; ++member) {
    const HeadPlace at{shape, blockIdx.x * group + member};
    const float* const head_q = at.q(queries);
    const float* const head_dy = at.y(dy);
    for (int query = larger(first - position, 0); query < shape.queries; query += tile_rows) {
      __syncthreads();
      load<D, skewed_stride<D>>(q, head_q, queries.columns, query, shape.queries, shape);
      load<D, skewed_stride<D>>(g, head_dy, shape.hidden, query, shape.queries, shape);
      __syncthreads();
      const bool inside = query + lane < shape.queries;
      const std::size_t lane_query = at.row() + static_cast<std::size_t>(query + lane);
      const float log_sum = inside ? log_sums[lane_query] : 0.0f;
      const float delta = inside ? deltas[lane_query] : 0.0f;
      float scores[warp_rows];
      float dp[warp_rows];
      dots<D>(k + row * D, q + lane * skewed_stride<D>, scores);
      dots<D>(v + row * D, g + lane * skewed_stride<D>, dp);
      for (int r = 0; r < warp_rows; ++r) {
        const bool seen = inside && first + row + r <= position + query + lane;
        const float p = seen ? expf(shape.scale * scores[r] - log_sum) : 0.0f;
        p_tile[(row + r) * tile_rows + lane] = p;
        ds_tile[(row + r) * tile_rows + lane] = p * (dp[r] - delta);
      }
      __syncwarp();
      accumulate<D>(p_tile + row * tile_rows, g, lane, dv);
      accumulate<D>(ds_tile + row * tile_rows, q, lane, dk);
    }
  }
  store<D>(dk, shape.scale, keys.k(dkv), dkv.columns, first + row, shape.keys, lane, shape);
  store<D>(dv, 1.0f, keys.v(dkv), dkv.columns, first + row, shape.keys, lane, shape);
}

}  // namespace starpipe::model::cuda::attention
