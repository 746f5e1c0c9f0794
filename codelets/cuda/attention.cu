// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "codelets/cuda/attention/attention_bf16_backward.cuh"
#include "codelets/cuda/attention/attention_bf16_forward.cuh"
#include "codelets/cuda/attention/attention_fp32.cuh"
#include "codelets/cuda/device/keep_input.hpp"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// What both kinds of kernels have in common.
class Blocks {
 public:
  Blocks(std::size_t rows, const attention::Shape& shape) : rows_(rows), shape_(shape) {}

  [[nodiscard]] const attention::Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::size_t qkv_size() const noexcept { return rows_ * 3 * shape_.hidden; }
  /// One float a row and head.
  [[nodiscard]] std::size_t sums() const noexcept { return rows_ * static_cast<std::size_t>(shape_.heads); }
  /// Of blocks of so many rows.
  [[nodiscard]] Grid grid(std::size_t block, unsigned threads, std::size_t shared) const noexcept {
    const auto context = static_cast<std::size_t>(shape_.context);
    const std::size_t tiles = parts(context, block);
    return {dim3(static_cast<unsigned>(sums() / context), static_cast<unsigned>(tiles)), dim3(threads),
            shared};
  }

 private:
  std::size_t rows_;
  attention::Shape shape_;
};

/// codelets/cpu/attention.cpp on a GPU in fp32, for heads of at most D columns.
template <int D>
class Attention final : public CudaLayer {
 public:
  Attention(std::size_t rows, const attention::Shape& shape) : blocks_(rows, shape) {}

  std::size_t scratch_size() const override { return blocks_.sums(); }

  void forward(const Context& on, ConstMemory /*parameters*/, ConstMemory input, Memory output, Memory stash,
               std::span<float> /*scratch*/) const noexcept override {
    const std::size_t count = blocks_.qkv_size();
    keep_input(on, "attention F", input, stash, count * sizeof(float));
    launch(on, "attention F", blocks_.grid(attention::kTile, kThreads, attention::kForwardShared<D>),
           attention::forward<D>, blocks_.shape(), input.as<float>(), output.as<float>(),
           floats_behind<float>(stash, count));
  }

  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      std::span<float> scratch) const noexcept override {
    const float* log_sums = floats_behind<float>(stash, blocks_.qkv_size());
    const Grid grid = blocks_.grid(attention::kTile, kThreads, attention::kBackwardShared<D>);
    launch(on, "attention B", grid, attention::backward_queries<D>, blocks_.shape(), stash.as<float>(),
           log_sums, output_gradient.as<float>(), input_gradient.as<float>(), scratch.data());
    launch(on, "attention B", grid, attention::backward_keys<D>, blocks_.shape(), stash.as<float>(), log_sums,
           static_cast<const float*>(scratch.data()), output_gradient.as<float>(),
           input_gradient.as<float>());
  }

 private:
  Blocks blocks_;
};

/// The same in bf16, on tensor cores.
template <int D>
class TensorCoreAttention final : public CudaLayer {
 public:
  TensorCoreAttention(std::size_t rows, const attention::Shape& shape) : blocks_(rows, shape) {}

  std::size_t scratch_size() const override { return blocks_.sums(); }

  void forward(const Context& on, ConstMemory /*parameters*/, ConstMemory input, Memory output, Memory stash,
               std::span<float> /*scratch*/) const noexcept override {
    const std::size_t count = blocks_.qkv_size();
    keep_input(on, "attention F", input, stash, count * sizeof(Bf16));
    launch(on, "attention F", grid<attention::bf16::Forward<D>>(), attention::bf16::forward<D>,
           blocks_.shape(), vectors({input, output}), input.as<Bf16>(), output.as<Bf16>(),
           floats_behind<Bf16>(stash, count));
  }

  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      std::span<float> scratch) const noexcept override {
    using namespace attention::bf16;
    const float* log_sums = floats_behind<Bf16>(stash, blocks_.qkv_size());
    const bool by_vector = vectors({stash, output_gradient, input_gradient});
    launch(on, "attention B", grid<BackwardQueries<D>>(), backward_queries<D>, blocks_.shape(), by_vector,
           stash.as<Bf16>(), log_sums, output_gradient.as<Bf16>(), input_gradient.as<Bf16>(), scratch.data());
    launch(on, "attention B", grid<BackwardKeys<D>>(), backward_keys<D>, blocks_.shape(), by_vector,
           stash.as<Bf16>(), log_sums, static_cast<const float*>(scratch.data()), output_gradient.as<Bf16>(),
           input_gradient.as<Bf16>());
  }

 private:
  template <class Tiles>
  [[nodiscard]] Grid grid() const noexcept {
    return blocks_.grid(Tiles::kRows, attention::bf16::kThreads, Tiles::kShared);
  }
  /// Whether the rows of all heads begin at multiples of 16 bytes and are as long.
  [[nodiscard]] bool vectors(std::initializer_list<ConstMemory> arrays) const noexcept {
    return blocks_.shape().size % 8 == 0 && std::all_of(arrays.begin(), arrays.end(), [](ConstMemory array) {
             return reinterpret_cast<std::uintptr_t>(array.data()) % 16 == 0;
           });
  }

  Blocks blocks_;
};

/// Null: the tiles would not fit the shared memory of every GPU.
template <template <int> class Twin>
std::shared_ptr<const CudaLayer> of_width(std::size_t rows, const attention::Shape& shape) {
  if (shape.size <= 32) return std::make_shared<Twin<32>>(rows, shape);
  if (shape.size <= 64) return std::make_shared<Twin<64>>(rows, shape);
  if (shape.size <= 128) return std::make_shared<Twin<128>>(rows, shape);
  return nullptr;
}

std::shared_ptr<const CudaLayer> make(const LayerSpec& spec, Precision precision) {
  constexpr std::size_t kMostTiles = 65535;  // blocks in a grid's second dimension
  const std::size_t heads = size_option(spec, "heads");
  const std::size_t context = size_option(spec, "context");
  const std::size_t hidden = spec.columns / 3;
  const std::size_t size = hidden / heads;
  if (parts(context, attention::kTile) > kMostTiles) return nullptr;
  const attention::Shape shape = {static_cast<int>(context), static_cast<int>(heads), static_cast<int>(size),
                                  1.0f / std::sqrt(static_cast<float>(size)), hidden};
  return precision == Precision::bf16 ? of_width<TensorCoreAttention>(spec.rows, shape)
                                      : of_width<Attention>(spec.rows, shape);
}

const bool registered = register_cuda_layer("attention", make);

}  // namespace
}  // namespace starpipe::model::cuda
