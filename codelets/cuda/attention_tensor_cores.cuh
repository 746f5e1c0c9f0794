// SPDX-License-Identifier: Apache-2.0
// attention.cuh in bf16, on tensor cores. A block holds kTile rows of one head, kStep of them a warp, and
// meets the other side's rows kTile at a time. Products sum in fp32; probabilities and the slopes of scores
// are rounded to bf16 before they are multiplied, as in Dao (arXiv 2307.08691). Which lane has which element
// of a product is the GPU's, so each goes through shared memory before anything is done to it.
//
// F goes over the keys twice, for the sums of exponentials and then for the values: so sums stay in the
// registers of their product and need not be rescaled there.
#pragma once

#include <cuda_bf16.h>
#include <mma.h>

#include "codelets/cuda/attention.cuh"

namespace starpipe::model::cuda::attention::tensor_cores {

using Element = __nv_bfloat16;

inline constexpr int kTile = 64;
inline constexpr int kStep = 16;  ///< rows, columns and depth of a warp's product
inline constexpr int kWarps = kTile / kStep;
inline constexpr unsigned kThreads = kWarps * kWarp;

// From row to row, such that neighbours begin in other banks; what wmma loads begins at multiples of 32
// bytes.
template <int D>
inline constexpr int kTileStride = D + 8;
inline constexpr int kScoreStride = kTile + 4;
inline constexpr int kWeightStride = kTile + 8;

using Product = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kStep, kStep, kStep, float>;
using Left =
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, kStep, kStep, kStep, Element, nvcuda::wmma::row_major>;
template <class Layout>
using Right = nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, kStep, kStep, kStep, Element, Layout>;

/// What a warp sums for its rows.
template <int D>
using Sums = Product[D / kStep];

/// The block's shared memory: tiles that all warps read, and for each warp one of scores and one of weights,
/// kStep rows by kTile columns.
template <int D, int Tiles>
struct Shared {
  static constexpr int kTileFloats = kTile * kTileStride<D> / 2;
  static constexpr int kWarpScores = kStep * kScoreStride;
  static constexpr int kWarpWeights = kStep * kWeightStride / 2;
  static constexpr std::size_t kFloats = Tiles * kTileFloats + kWarps * (kWarpScores + kWarpWeights);

  __device__ static Element* tile(int number) {
    return reinterpret_cast<Element*>(shared_floats() + number * kTileFloats);
  }
  __device__ static float* scores(int warp) {
    return shared_floats() + Tiles * kTileFloats + warp * kWarpScores;
  }
  __device__ static Element* weights(int warp) {
    return reinterpret_cast<Element*>(scores(kWarps) + warp * kWarpWeights);
  }
};

/// A thread's part of what its warp does to scores: half of one row, every other column.
struct Part {
  static constexpr int kColumns = kTile / 2;
  int warp = static_cast<int>(threadIdx.x) / kWarp;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int row = lane / 2;

  __device__ int column(int i) const { return lane % 2 + 2 * i; }
  __device__ int score(int i) const { return row * kScoreStride + column(i); }
  __device__ int weight(int i) const { return row * kWeightStride + column(i); }
};

/// Of both halves of a row.
__device__ inline float row_sum_of(float half) { return half + __shfl_xor_sync(kAllLanes, half, 1); }
__device__ inline float row_max_of(float half) { return fmaxf(half, __shfl_xor_sync(kAllLanes, half, 1)); }

/// Rows [first, first + kTile) of one head, `stride` apart in memory.
template <int D>
__device__ void load(Element* tile, const Element* head, std::size_t stride, int first, const Shape& shape,
                     bool vectors) {
  constexpr int kVector = 8;
  for (int i = static_cast<int>(threadIdx.x) * kVector; i < kTile * D;
       i += static_cast<int>(kThreads) * kVector) {
    const int row = i / D;
    const int column = i % D;
    const Element* from =
        head + static_cast<std::size_t>(first + row) * stride + static_cast<std::size_t>(column);
    Element* to = tile + row * kTileStride<D> + column;
    const bool inside = first + row < shape.context;
    if (vectors) {
      *reinterpret_cast<uint4*>(to) =
          inside && column < shape.size ? *reinterpret_cast<const uint4*>(from) : uint4{};
    } else {
      for (int c = 0; c < kVector; ++c) {
        to[c] = inside && column + c < shape.size ? from[c] : static_cast<Element>(0.0f);
      }
    }
  }
}

/// From `key` on, for all threads to read, when all have done with the tiles before. `head`: of the queries.
template <int D>
__device__ void load_keys_and_values(Element* k, Element* v, const Element* head, int key, const Shape& shape,
                                     bool vectors) {
  __syncthreads();
  load<D>(k, head + shape.hidden, 3 * shape.hidden, key, shape, vectors);
  load<D>(v, head + 2 * shape.hidden, 3 * shape.hidden, key, shape, vectors);
  __syncthreads();
}

/// scores = the warp's rows times the tile's, for all lanes to read.
template <int D>
__device__ void multiply(const Element* rows, const Element* tile, float* scores) {
  Product products[kTile / kStep];
  for (Product& product : products) nvcuda::wmma::fill_fragment(product, 0.0f);
#pragma unroll
  for (int k = 0; k < D; k += kStep) {
    Left left;
    nvcuda::wmma::load_matrix_sync(left, rows + k, kTileStride<D>);
#pragma unroll
    for (int n = 0; n < kTile / kStep; ++n) {
      Right<nvcuda::wmma::col_major> right;
      nvcuda::wmma::load_matrix_sync(right, tile + n * kStep * kTileStride<D> + k, kTileStride<D>);
      nvcuda::wmma::mma_sync(products[n], left, right, products[n]);
    }
  }
  __syncwarp();  // all have read the scores before
#pragma unroll
  for (int n = 0; n < kTile / kStep; ++n) {
    nvcuda::wmma::store_matrix_sync(scores + n * kStep, products[n], kScoreStride,
                                    nvcuda::wmma::mem_row_major);
  }
  __syncwarp();
}

/// sums += weights * tile, when the lanes have written their weights.
template <int D>
__device__ void accumulate(const Element* weights, const Element* tile, Sums<D>& sums) {
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kTile; k += kStep) {
    Left left;
    nvcuda::wmma::load_matrix_sync(left, weights + k, kWeightStride);
#pragma unroll
    for (int n = 0; n < D / kStep; ++n) {
      Right<nvcuda::wmma::row_major> right;
      nvcuda::wmma::load_matrix_sync(right, tile + k * kTileStride<D> + n * kStep, kTileStride<D>);
      nvcuda::wmma::mma_sync(sums[n], left, right, sums[n]);
    }
  }
  __syncwarp();  // before the weights change
}

template <int D>
__device__ void clear(Sums<D>& sums) {
#pragma unroll
  for (Product& sum : sums) nvcuda::wmma::fill_fragment(sum, 0.0f);
}

/// Writes factor * sums to the warp's rows of a head, the first of which is `first`, by way of `scores`.
template <int D>
__device__ void store(const Sums<D>& sums, float factor, Element* head, std::size_t stride, int first,
                      float* scores, const Part& part, const Shape& shape) {
  constexpr int kColumns = D < kTile ? D : kTile;  // at a time
#pragma unroll
  for (int at = 0; at < D; at += kColumns) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kColumns / kStep; ++n) {
      nvcuda::wmma::store_matrix_sync(scores + n * kStep, sums[at / kStep + n], kScoreStride,
                                      nvcuda::wmma::mem_row_major);
    }
    __syncwarp();
    for (int i = part.lane; i < kStep * kColumns; i += kWarp) {
      const int row = i / kColumns;
      const int column = i % kColumns;
      if (first + row >= shape.context || at + column >= shape.size) continue;
      head[static_cast<std::size_t>(first + row) * stride + static_cast<std::size_t>(at + column)] =
          static_cast<Element>(factor * scores[row * kScoreStride + column]);
    }
  }
}

/// The first row of the block: those with the most to do start first.
__device__ inline int last_first() { return static_cast<int>(gridDim.y - 1 - blockIdx.y) * kTile; }

template <int D>
inline constexpr std::size_t kForwardShared = Shared<D, 3>::kFloats;
template <int D>
inline constexpr std::size_t kBackwardShared = Shared<D, 4>::kFloats;

/// F, as attention::forward. `vectors`: rows of heads begin at multiples of 16 bytes and are as long.
template <int D>
__global__ void __launch_bounds__(kThreads)
    forward(Shape shape, bool vectors, const Element* qkv, Element* y, float* log_sums) {
  using Memory = Shared<D, 3>;
  const Part part;
  Element* const q = Memory::tile(0);
  Element* const k = Memory::tile(1);
  Element* const v = Memory::tile(2);
  float* const scores = Memory::scores(part.warp);
  Element* const weights = Memory::weights(part.warp);
  const Corner at = corner(shape, blockIdx.x);
  const int first = last_first();
  const int query = first + part.warp * kStep + part.row;
  const Element* const rows = q + part.warp * kStep * kTileStride<D>;
  load<D>(q, qkv + at.qkv, 3 * shape.hidden, first, shape, vectors);

  OnlineSoftmax softmax;
  for (int key = 0; key <= first; key += kTile) {
    __syncthreads();  // all have done with the tile before
    load<D>(k, qkv + at.qkv + shape.hidden, 3 * shape.hidden, key, shape, vectors);
    __syncthreads();
    multiply<D>(rows, k, scores);
    float top = -INFINITY;
    for (int i = 0; i < Part::kColumns; ++i) {
      if (key + part.column(i) <= query) top = fmaxf(top, shape.scale * scores[part.score(i)]);
    }
    softmax.raise(row_max_of(top));
    float sum = 0;
    for (int i = 0; i < Part::kColumns; ++i) {
      if (key + part.column(i) <= query) sum += expf(shape.scale * scores[part.score(i)] - softmax.top);
    }
    softmax.sum += row_sum_of(sum);
  }
  const float log_sum = softmax.log_sum_exp();
  if (part.lane % 2 == 0 && query < shape.context)
    log_sums[at.sums + static_cast<std::size_t>(query)] = log_sum;

  Sums<D> sums;
  clear<D>(sums);
  for (int key = 0; key <= first; key += kTile) {
    load_keys_and_values<D>(k, v, qkv + at.qkv, key, shape, vectors);
    multiply<D>(rows, k, scores);
    for (int i = 0; i < Part::kColumns; ++i) {
      const bool seen = key + part.column(i) <= query;
      weights[part.weight(i)] =
          static_cast<Element>(seen ? expf(shape.scale * scores[part.score(i)] - log_sum) : 0.0f);
    }
    accumulate<D>(weights, v, sums);
  }
  store<D>(sums, 1.0f, y + at.y, shape.hidden, first + part.warp * kStep, scores, part, shape);
}

/// B, of the queries, as attention::backward_queries.
template <int D>
__global__ void __launch_bounds__(kThreads)
    backward_queries(Shape shape, bool vectors, const Element* qkv, const float* log_sums, const Element* dy,
                     Element* dqkv, float* row_sums) {
  using Memory = Shared<D, 4>;
  const Part part;
  Element* const q = Memory::tile(0);
  Element* const g = Memory::tile(1);  // of dy
  Element* const k = Memory::tile(2);
  Element* const v = Memory::tile(3);
  float* const scores = Memory::scores(part.warp);
  Element* const weights = Memory::weights(part.warp);
  const Corner at = corner(shape, blockIdx.x);
  const int first = last_first();
  const int query = first + part.warp * kStep + part.row;
  const int rows = part.warp * kStep * kTileStride<D>;
  load<D>(q, qkv + at.qkv, 3 * shape.hidden, first, shape, vectors);
  load<D>(g, dy + at.y, shape.hidden, first, shape, vectors);
  const bool inside = query < shape.context;
  const float log_sum = inside ? log_sums[at.sums + static_cast<std::size_t>(query)] : 0.0f;

  Sums<D> sums;
  clear<D>(sums);
  float row_sum = 0;
  for (int sweep = 0; sweep < 2; ++sweep) {
    for (int key = 0; key <= first; key += kTile) {
      load_keys_and_values<D>(k, v, qkv + at.qkv, key, shape, vectors);
      multiply<D>(q + rows, k, scores);
      float p[Part::kColumns];
#pragma unroll
      for (int i = 0; i < Part::kColumns; ++i) {
        const bool seen = key + part.column(i) <= query;
        p[i] = seen ? expf(shape.scale * scores[part.score(i)] - log_sum) : 0.0f;
      }
      multiply<D>(g + rows, v, scores);  // slopes of the probabilities
#pragma unroll
      for (int i = 0; i < Part::kColumns; ++i) {
        const float slope = scores[part.score(i)];
        if (sweep == 0) row_sum += p[i] * slope;
        if (sweep == 1) weights[part.weight(i)] = static_cast<Element>(p[i] * (slope - row_sum));
      }
      if (sweep == 1) accumulate<D>(weights, k, sums);
    }
    if (sweep == 0) row_sum = row_sum_of(row_sum);
  }
  if (part.lane % 2 == 0 && inside) row_sums[at.sums + static_cast<std::size_t>(query)] = row_sum;
  store<D>(sums, shape.scale, dqkv + at.qkv, 3 * shape.hidden, first + part.warp * kStep, scores, part,
           shape);
}

/// B, of the keys and values, as attention::backward_keys; after backward_queries.
template <int D>
__global__ void __launch_bounds__(kThreads)
    backward_keys(Shape shape, bool vectors, const Element* qkv, const float* log_sums, const float* row_sums,
                  const Element* dy, Element* dqkv) {
  using Memory = Shared<D, 4>;
  const Part part;
  Element* const k = Memory::tile(0);
  Element* const v = Memory::tile(1);
  Element* const q = Memory::tile(2);
  Element* const g = Memory::tile(3);  // of dy
  float* const scores = Memory::scores(part.warp);
  Element* const weights = Memory::weights(part.warp);
  const Corner at = corner(shape, blockIdx.x);
  const int first = static_cast<int>(blockIdx.y) * kTile;
  const int key = first + part.warp * kStep + part.row;
  const int rows = part.warp * kStep * kTileStride<D>;
  load<D>(k, qkv + at.qkv + shape.hidden, 3 * shape.hidden, first, shape, vectors);
  load<D>(v, qkv + at.qkv + 2 * shape.hidden, 3 * shape.hidden, first, shape, vectors);

  Sums<D> key_sums;
  Sums<D> value_sums;
  clear<D>(key_sums);
  clear<D>(value_sums);
  for (int query = first; query < shape.context; query += kTile) {
    __syncthreads();
    load<D>(q, qkv + at.qkv, 3 * shape.hidden, query, shape, vectors);
    load<D>(g, dy + at.y, shape.hidden, query, shape, vectors);
    __syncthreads();
    multiply<D>(k + rows, q, scores);
    float p[Part::kColumns];
#pragma unroll
    for (int i = 0; i < Part::kColumns; ++i) {
      const int other = query + part.column(i);
      const bool seen = other < shape.context && key <= other;
      p[i] = seen ? expf(shape.scale * scores[part.score(i)] -
                         log_sums[at.sums + static_cast<std::size_t>(other)])
                  : 0.0f;
      weights[part.weight(i)] = static_cast<Element>(p[i]);
    }
    accumulate<D>(weights, g, value_sums);
    multiply<D>(v + rows, g, scores);  // slopes of the probabilities
#pragma unroll
    for (int i = 0; i < Part::kColumns; ++i) {
      const int other = query + part.column(i);
      const float row_sum =
          other < shape.context ? row_sums[at.sums + static_cast<std::size_t>(other)] : 0.0f;
      weights[part.weight(i)] = static_cast<Element>(p[i] * (scores[part.score(i)] - row_sum));
    }
    accumulate<D>(weights, q, key_sums);
  }
  Element* const dkeys = dqkv + at.qkv + shape.hidden;
  const int row = first + part.warp * kStep;
  store<D>(key_sums, shape.scale, dkeys, 3 * shape.hidden, row, scores, part, shape);
  store<D>(value_sums, 1.0f, dkeys + shape.hidden, 3 * shape.hidden, row, scores, part, shape);
}

}  // namespace starpipe::model::cuda::attention::tensor_cores
