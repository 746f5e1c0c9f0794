// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "codelets/cuda/kernels/attention_bf16_backward.cuh"
#include "codelets/cuda/kernels/attention_bf16_forward.cuh"
#include "codelets/cuda/kernels/attention_fp32.cuh"
#include "codelets/cuda/kernels/device.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// The kernels in fp32 for heads of at most D columns. Each block has `rows` rows of a head, `threads`
/// threads, and a number of floats of shared memory.
template <int D>
struct Fp32Kernels {
  using Element = float;
  static constexpr std::size_t rows = attention::tile_rows;
  static constexpr unsigned threads = default_threads;
  static constexpr std::size_t forward_shared = attention::forward_shared<D>;
  static constexpr std::size_t queries_shared = attention::backward_shared<D>;
  static constexpr std::size_t keys_shared = attention::backward_shared<D>;
  static constexpr auto forward = attention::forward<D>;
  static constexpr auto backward_queries = attention::backward_queries<D>;
  static constexpr auto backward_keys = attention::backward_keys<D>;
};

/// The same in bf16, on tensor cores.
template <int D>
struct TensorCoreKernels : attention::bf16::Tiles<D> {
  using Element = Bf16;
  static constexpr unsigned threads = attention::bf16::block_threads;
  static constexpr auto forward = attention::bf16::forward<D>;
  static constexpr auto backward_queries = attention::bf16::backward_queries<D>;
  static constexpr auto backward_keys = attention::bf16::backward_keys<D>;
};

/// Attention on a GPU's stream; codelets/cpu/attention.cpp says what it computes.
template <class Kernels>
class Attention final : public CudaLayer {
  using T = typename Kernels::Element;

 public:
  Attention(const LayerSpec& spec, const attention::Shape& shape) : CudaLayer(spec), shape_(shape) {}

  /// Returns the words of the deltas, one float per row and query head. One kernel of B passes them to the
  /// other.
  std::size_t scratch_size() const override { return rows_ * static_cast<std::size_t>(shape_.heads); }

  void forward(const Context& on, const Forward& pass) const noexcept override {
    const std::size_t count = rows_ * columns_;
    keep_input(on, "attention F", pass.input, pass.stash, count * sizeof(T));
    launch(on, "attention F", grid(shape_.heads, Kernels::forward_shared), Kernels::forward,
           shape_in({pass.input, pass.output}), pass.input.as<T>(), pass.output.as<T>(),
           floats_behind<T>(pass.stash, count));
  }

  void backward_input(const Context& on, const Backward& pass) const noexcept override {
    const attention::Shape shape = shape_in({pass.stash, pass.output_gradient, pass.input_gradient});
    const T* qkv = pass.stash.as<T>();
    const float* log_sums = floats_behind<T>(pass.stash, rows_ * columns_);
    const T* dy = pass.output_gradient.as<T>();
    T* dqkv = pass.input_gradient.as<T>();
    float* const deltas = pass.scratch.data();
    launch(on, "attention B", grid(shape.heads, Kernels::queries_shared), Kernels::backward_queries, shape,
           qkv, log_sums, dy, dqkv, deltas);
    launch(on, "attention B", grid(shape.heads / shape.group, Kernels::keys_shared), Kernels::backward_keys,
           shape, qkv, log_sums, static_cast<const float*>(deltas), dy, dqkv);
  }

 private:
  /// Returns the grid of a kernel in which each block has rows of one head. `heads`: number of query heads,
  /// or of key heads for the keys' kernel.
  [[nodiscard]] Grid grid(int heads, std::size_t shared) const noexcept {
    const auto context = static_cast<std::size_t>(shape_.context);
    return {dim3(static_cast<unsigned>(rows_ / context) * static_cast<unsigned>(heads),
                 static_cast<unsigned>(ceil_div(context, std::size_t{Kernels::rows}))),
            dim3(Kernels::threads), shared};
  }
  /// Returns the shape of a pass on these arrays, which says whether they are aligned.
  [[nodiscard]] attention::Shape shape_in(std::initializer_list<ConstMemory> arrays) const noexcept {
    attention::Shape shape = shape_;
    shape.aligned = shape.size % 8 == 0 && std::all_of(arrays.begin(), arrays.end(), [](ConstMemory array) {
                      return pack_aligned(array.as<T>());
                    });
    return shape;
  }

  attention::Shape shape_;
};

/// Returns the layer with the smallest D that holds a head; null for heads wider than 128, whose tiles would
/// not fit the shared memory of every GPU.
template <template <int> class Kernels>
std::shared_ptr<const CudaLayer> of_width(const LayerSpec& spec, const attention::Shape& shape) {
  if (shape.size <= 32) return std::make_shared<Attention<Kernels<32>>>(spec, shape);
  if (shape.size <= 64) return std::make_shared<Attention<Kernels<64>>>(spec, shape);
  if (shape.size <= 128) return std::make_shared<Attention<Kernels<128>>>(spec, shape);
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
  return precision == Precision::bf16 ? of_width<TensorCoreKernels>(spec, shape)
                                      : of_width<Fp32Kernels>(spec, shape);
}

const bool registered = register_cuda_layer("attention", make);

}  // namespace
}  // namespace starpipe::model::cuda
