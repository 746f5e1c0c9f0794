// SPDX-License-Identifier: Apache-2.0
// Updates, and the sums of squares for the norm of the gradient, whose bits are the CPU's: each lane, and the
// tree over the lanes, add in the order of model::sum_of_squares().
#include "starpipe/model/optimizer.hpp"

#include <algorithm>

#include "codelets/cuda/backend/stream_backend.hpp"
#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "codelets/cuda/kernels/launch.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "model/arithmetic.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model::cuda {
namespace {

static_assert(norm_lanes == warp_size);

constexpr unsigned block_warps = default_threads / warp_size;

/// Some of the parts. Kernels get it by value.
struct Parts {
  static constexpr int max = 64;
  int count = 0;
  std::size_t chunks = 0;             ///< of all parts
  std::size_t begin[max] = {};        ///< of each part in the values
  std::size_t size[max] = {};         ///< numbers of each part
  std::size_t first_chunk[max] = {};  ///< of each part among all chunks
};

/// Returns the number of the calling thread's warp in the grid.
__device__ std::size_t warp_number() {
  return std::size_t{blockIdx.x} * block_warps + threadIdx.x / warp_size;
}

/// Adds up load(i) for i in [0, count): lane l the numbers l, l + 32, ..., then the lanes in a tree.
template <class Load>
__device__ double sum_of_warp(std::size_t count, Load load) {
  double sum = 0;
  each_loaded<8>(threadIdx.x % warp_size, count, warp_size, load, [&](double value) { sum += value; });
  return warp_sum(sum);
}

__global__ void sum_chunks(Parts parts, const float* values, double* chunk_sums) {
  const std::size_t chunk = warp_number();
  if (chunk >= parts.chunks) return;
  int part = 0;
  while (part + 1 < parts.count && parts.first_chunk[part + 1] <= chunk) ++part;
  const std::size_t first = (chunk - parts.first_chunk[part]) * norm_chunk;
  const std::size_t left = parts.size[part] - first;
  const float* const begin = values + parts.begin[part] + first;
  const double sum = sum_of_warp(left < norm_chunk ? left : norm_chunk, [begin](std::size_t i) {
    const auto value = static_cast<double>(begin[i]);
    return value * value;
  });
  if (threadIdx.x % warp_size == 0) chunk_sums[chunk] = sum;
}

__global__ void sum_parts(Parts parts, const double* chunk_sums, double* sums) {
  const auto part = static_cast<int>(warp_number());
  if (part >= parts.count) return;
  const std::size_t first = parts.first_chunk[part];
  const std::size_t last = part + 1 < parts.count ? parts.first_chunk[part + 1] : parts.chunks;
  const double sum =
      sum_of_warp(last - first, [chunk_sums, first](std::size_t i) { return chunk_sums[first + i]; });
  if (threadIdx.x % warp_size == 0) sums[part] = sum;
}

Grid grid_of(std::size_t warps) {
  return {dim3(static_cast<unsigned>(ceil_div(warps, block_warps))), dim3(default_threads)};
}

}  // namespace

void StreamBackend::update(const OptimizerConfig& config, const Update& update, ConstFloatView gradient,
                           FloatView parameters, FloatView state) const noexcept {
  for_each_range(config, update, gradient, parameters, state,
                 [&](const auto& formula, std::size_t count, auto*... arrays) {
                   for_each_element<float>(on_, config.kind.c_str(), count, formula, arrays...);
                 });
}

void StreamBackend::sum_squares(ConstFloatView values, std::span<const std::size_t> sizes,
                                std::span<double> sums, Memory scratch) const noexcept {
  if (sizes.empty()) return;
  auto* const part_sums = scratch.as<double>();
  double* const chunk_sums = part_sums + sizes.size();
  std::size_t begin = 0;
  for (std::size_t done = 0; done < sizes.size();) {
    Parts parts;
    for (; parts.count < Parts::max && done + static_cast<std::size_t>(parts.count) < sizes.size();
         ++parts.count) {
      const std::size_t size = sizes[done + static_cast<std::size_t>(parts.count)];
      parts.begin[parts.count] = begin;
      parts.size[parts.count] = size;
      parts.first_chunk[parts.count] = parts.chunks;
      parts.chunks += ceil_div(size, norm_chunk);
      begin += size;
    }
    if (parts.chunks > 0)
      launch(on_, "sums of squares", grid_of(parts.chunks), sum_chunks, parts, values.data(), chunk_sums);
    launch(on_, "sums of squares", grid_of(static_cast<std::size_t>(parts.count)), sum_parts, parts,
           static_cast<const double*>(chunk_sums), part_sums + done);
    done += static_cast<std::size_t>(parts.count);
  }
  check(cudaMemcpyAsync(sums.data(), part_sums, sizes.size() * sizeof(double), cudaMemcpyDefault, on_.stream),
        "sums of squares");
}

}  // namespace starpipe::model::cuda
