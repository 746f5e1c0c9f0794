// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/attention.cuh"

#include <cmath>

#include "starpipe/model/cuda_twin.hpp"

namespace starpipe::model::cuda {
namespace {

/// codelets/cpu/attention.cpp on a GPU, for heads of at most D columns.
template <int D, class T>
class Attention final : public CudaLayer {
 public:
  Attention(std::size_t rows, const attention::Shape& shape) : rows_(rows), shape_(shape) {}

  /// One float a row and head.
  std::size_t scratch_size() const override { return rows_ * static_cast<std::size_t>(shape_.heads); }

  void forward(const Context& on, ConstMemory /*parameters*/, ConstMemory input, Memory output, Memory stash,
               std::span<float> /*scratch*/) const noexcept override {
    const std::size_t count = rows_ * 3 * shape_.hidden;
    check(cudaMemcpyAsync(stash.data(), input.data(), count * sizeof(T), cudaMemcpyDeviceToDevice, on.stream),
          "attention F");
    launch(on, "attention F", grid(attention::kForwardShared<D>), attention::forward<D, T>, shape_,
           input.as<T>(), output.as<T>(), floats_behind<T>(stash, count));
  }

  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      std::span<float> scratch) const noexcept override {
    const float* log_sums = floats_behind<T>(stash, rows_ * 3 * shape_.hidden);
    const Grid blocks = grid(attention::kBackwardShared<D>);
    launch(on, "attention B", blocks, attention::backward_queries<D, T>, shape_, stash.as<T>(), log_sums,
           output_gradient.as<T>(), input_gradient.as<T>(), scratch.data());
    launch(on, "attention B", blocks, attention::backward_keys<D, T>, shape_, stash.as<T>(), log_sums,
           static_cast<const float*>(scratch.data()), output_gradient.as<T>(), input_gradient.as<T>());
  }

 private:
  Grid grid(std::size_t shared) const noexcept {
    const auto context = static_cast<std::size_t>(shape_.context);
    const std::size_t heads = rows_ / context * static_cast<std::size_t>(shape_.heads);
    const std::size_t tiles = parts(context, attention::kTile);
    return {dim3(static_cast<unsigned>(heads), static_cast<unsigned>(tiles)), dim3(kThreads), shared};
  }

  std::size_t rows_;
  attention::Shape shape_;
};

template <class T>
using Attention32 = Attention<32, T>;
template <class T>
using Attention64 = Attention<64, T>;
template <class T>
using Attention128 = Attention<128, T>;

std::shared_ptr<const CudaLayer> make(const LayerSpec& spec, Precision precision) {
  constexpr std::size_t kMostTiles = 65535;  // blocks in a grid's second dimension
  const std::size_t heads = size_option(spec, "heads");
  const std::size_t context = size_option(spec, "context");
  const std::size_t hidden = spec.columns / 3;
  const std::size_t size = hidden / heads;
  if (parts(context, attention::kTile) > kMostTiles) return nullptr;
  const attention::Shape shape = {static_cast<int>(context), static_cast<int>(heads), static_cast<int>(size),
                                  1.0f / std::sqrt(static_cast<float>(size)), hidden};
  if (size <= 32) return make_twin<CudaLayer, Attention32>(precision, spec.rows, shape);
  if (size <= 64) return make_twin<CudaLayer, Attention64>(precision, spec.rows, shape);
  if (size <= 128) return make_twin<CudaLayer, Attention128>(precision, spec.rows, shape);
  return nullptr;  // its tiles would not fit the shared memory of every GPU
}

const bool registered = register_cuda_layer("attention", make);

}  // namespace
}  // namespace starpipe::model::cuda
