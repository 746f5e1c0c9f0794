// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "codelets/cuda/kernels/attention_bf16_backward.cuh"
#include "codelets/cuda/kernels/attention_bf16_forward.cuh"
#include "codelets/cuda/kernels/attention_fp32.cuh"
#include "codelets/cuda/kernels/device.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// Sizes that the fp32 and the bf16 implementation share.
class Sizes {
 public:
  Sizes(std::size_t rows, const attention::Shape& shape) : rows_(rows), shape_(shape) {}

  [[nodiscard]] const attention::Shape& shape() const noexcept { return shape_; }
  /// Elements of the input [q | k | v].
  [[nodiscard]] std::size_t qkv() const noexcept { return rows_ * shape_.columns; }
  /// Floats of an array with one float per row and query head.
  [[nodiscard]] std::size_t statistics() const noexcept {
    return rows_ * static_cast<std::size_t>(shape_.heads);
  }
  /// The grid of kernels whose blocks of `threads` threads keep `block_rows` rows of a query head each.
  [[nodiscard]] Grid grid(std::size_t block_rows, unsigned threads, std::size_t shared) const noexcept {
    const auto context = static_cast<std::size_t>(shape_.context);
    const std::size_t blocks = ceil_div(context, block_rows);  // of one head in one sequence
    return {dim3(static_cast<unsigned>(statistics() / context), static_cast<unsigned>(blocks)), dim3(threads),
            shared};
  }
  /// The same for rows of the heads of keys and values.
  [[nodiscard]] Grid keys_grid(std::size_t block_rows, unsigned threads, std::size_t shared) const noexcept {
    Grid grid_of_keys = grid(block_rows, threads, shared);
    grid_of_keys.blocks.x /= static_cast<unsigned>(shape_.group);
    return grid_of_keys;
  }

 private:
  std::size_t rows_;
  attention::Shape shape_;
};

/// codelets/cpu/attention.cpp on a GPU in fp32, for heads of at most D columns.
template <int D>
class Attention final : public CudaLayer {
 public:
  Attention(std::size_t rows, const attention::Shape& shape) : sizes_(rows, shape) {}

  std::size_t scratch_size() const override { return sizes_.statistics(); }

  void forward(const Context& on, ConstMemory /*parameters*/, ConstMemory input, Memory output, Memory stash,
               FloatView /*scratch*/) const noexcept override {
    const std::size_t count = sizes_.qkv();
    keep_input(on, "attention F", input, stash, count * sizeof(float));
    launch(on, "attention F",
           sizes_.grid(attention::tile_rows, default_threads, attention::forward_shared<D>),
           attention::forward<D>, sizes_.shape(), input.as<float>(), output.as<float>(),
           floats_behind<float>(stash, count));
  }

  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      FloatView scratch) const noexcept override {
    const float* log_sums = floats_behind<float>(stash, sizes_.qkv());
    constexpr std::size_t shared = attention::backward_shared<D>;
    float* const deltas = scratch.data();
    launch(on, "attention B", sizes_.grid(attention::tile_rows, default_threads, shared),
           attention::backward_queries<D>, sizes_.shape(), stash.as<float>(), log_sums,
           output_gradient.as<float>(), input_gradient.as<float>(), deltas);
    launch(on, "attention B", sizes_.keys_grid(attention::tile_rows, default_threads, shared),
           attention::backward_keys<D>, sizes_.shape(), stash.as<float>(), log_sums,
           static_cast<const float*>(deltas), output_gradient.as<float>(), input_gradient.as<float>());
  }

 private:
  Sizes sizes_;
};

/// codelets/cpu/attention.cpp on the tensor cores of a GPU in bf16, for heads of at most D columns.
template <int D>
class TensorCoreAttention final : public CudaLayer {
 public:
  TensorCoreAttention(std::size_t rows, const attention::Shape& shape) : sizes_(rows, shape) {}

  std::size_t scratch_size() const override { return sizes_.statistics(); }

  void forward(const Context& on, ConstMemory /*parameters*/, ConstMemory input, Memory output, Memory stash,
               FloatView /*scratch*/) const noexcept override {
    const std::size_t count = sizes_.qkv();
    keep_input(on, "attention F", input, stash, count * sizeof(Bf16));
    using Tiles = attention::bf16::Forward<D>;
    launch(on, "attention F", sizes_.grid(Tiles::rows, attention::bf16::block_threads, Tiles::shared),
           attention::bf16::forward<D>, sizes_.shape(), aligned({input, output}), input.as<Bf16>(),
           output.as<Bf16>(), floats_behind<Bf16>(stash, count));
  }

  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      FloatView scratch) const noexcept override {
    using namespace attention::bf16;
    const float* log_sums = floats_behind<Bf16>(stash, sizes_.qkv());
    const bool all_aligned = aligned({stash, output_gradient, input_gradient});
    float* const deltas = scratch.data();
    launch(on, "attention B",
           sizes_.grid(BackwardQueries<D>::rows, block_threads, BackwardQueries<D>::shared),
           backward_queries<D>, sizes_.shape(), all_aligned, stash.as<Bf16>(), log_sums,
           output_gradient.as<Bf16>(), input_gradient.as<Bf16>(), deltas);
    launch(on, "attention B", sizes_.keys_grid(BackwardKeys<D>::rows, block_threads, BackwardKeys<D>::shared),
           backward_keys<D>, sizes_.shape(), all_aligned, stash.as<Bf16>(), log_sums,
           static_cast<const float*>(deltas), output_gradient.as<Bf16>(), input_gradient.as<Bf16>());
  }

 private:
  /// True if, in all arrays, every row of every head begins at a multiple of 16 bytes and has a multiple of
  /// 16 bytes.
  [[nodiscard]] bool aligned(std::initializer_list<ConstMemory> arrays) const noexcept {
    return sizes_.shape().size % 8 == 0 && std::all_of(arrays.begin(), arrays.end(), [](ConstMemory array) {
             return reinterpret_cast<std::uintptr_t>(array.data()) % 16 == 0;
           });
  }

  Sizes sizes_;
};

/// An Implementation<D> with the smallest D that holds a head. Null for wider heads, as their tiles would not
/// fit the shared memory of every GPU.
template <template <int> class Implementation>
std::shared_ptr<const CudaLayer> of_width(std::size_t rows, const attention::Shape& shape) {
  if (shape.size <= 32) return std::make_shared<Implementation<32>>(rows, shape);
  if (shape.size <= 64) return std::make_shared<Implementation<64>>(rows, shape);
  if (shape.size <= 128) return std::make_shared<Implementation<128>>(rows, shape);
  return nullptr;
}

std::shared_ptr<const CudaLayer> make(const LayerSpec& spec, Precision precision) {
  constexpr std::size_t max_tiles = 65535;  // CUDA's limit on blocks in a grid's second dimension
  const std::size_t heads = size_option(spec, "heads");
  const std::size_t kv_heads = size_option(spec, "kv_heads", heads);
  const std::size_t context = size_option(spec, "context");
  const std::size_t size = spec.columns / (heads + 2 * kv_heads);
  if (ceil_div(context, attention::tile_rows) > max_tiles) return nullptr;
  const attention::Shape shape = {.context = static_cast<int>(context),
                                  .heads = static_cast<int>(heads),
                                  .group = static_cast<int>(heads / kv_heads),
                                  .size = static_cast<int>(size),
                                  .scale = 1.0f / std::sqrt(static_cast<float>(size)),
                                  .columns = spec.columns,
                                  .hidden = heads * size};
  return precision == Precision::bf16 ? of_width<TensorCoreAttention>(spec.rows, shape)
                                      : of_width<Attention>(spec.rows, shape);
}

const bool registered = register_cuda_layer("attention", make);

}  // namespace
}  // namespace starpipe::model::cuda
