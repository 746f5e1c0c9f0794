// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels.cuh"
#include "starpipe/model/cuda_twin.hpp"

namespace starpipe::model::cuda {
namespace {

template <class T>
struct Forward {
  const float* ids;
  const T* tokens;
  const T* positions;
  T* y;
  std::size_t vocabulary;
  std::size_t context;
  std::size_t columns;
  __device__ void operator()(std::size_t i) const {
    const std::size_t row = i / columns;
    const std::size_t column = i % columns;
    const T token = tokens[index_of(ids[row], vocabulary) * columns + column];
    const T position = positions[row % context * columns + column];
    y[i] = static_cast<T>(static_cast<float>(token) + static_cast<float>(position));
  }
};

/// One block a token of the vocabulary and kThreads columns: it goes through all rows and adds those that
/// have the token, in their order. Atomic additions would have less work, and another order in each run.
template <class T>
__global__ void add_token_gradients(std::size_t rows, std::size_t columns, std::size_t vocabulary,
                                    const float* ids, const T* dy, float* gradients) {
  __shared__ unsigned tokens[kThreads];
  const std::size_t token = blockIdx.x;
  const std::size_t column = std::size_t{blockIdx.y} * kThreads + threadIdx.x;
  float sum = 0;
  for (std::size_t first = 0; first < rows; first += kThreads) {
    const std::size_t count = rows - first < kThreads ? rows - first : kThreads;
    __syncthreads();
    if (threadIdx.x < count) {
      tokens[threadIdx.x] = static_cast<unsigned>(index_of(ids[first + threadIdx.x], vocabulary));
    }
    __syncthreads();
    if (column >= columns) continue;
    for (std::size_t r = 0; r < count; ++r) {
      if (tokens[r] == token) sum += static_cast<float>(dy[(first + r) * columns + column]);
    }
  }
  if (column >= columns) return;
  gradients[token * columns + column] += sum;
}

/// One element of the positions' gradient: over the sequences, in order.
template <class T>
struct AddPositionGradient {
  const T* dy;
  float* gradients;
  std::size_t rows;
  std::size_t stride;  // elements of a sequence
  std::size_t columns;
  __device__ void operator()(std::size_t i) const {
    float sum = 0;
    for (std::size_t at = i; at < rows * columns; at += stride) sum += static_cast<float>(dy[at]);
    gradients[i] += sum;
  }
};

/// codelets/cpu/embedding.cpp on a GPU.
template <class T>
class Embedding final : public CudaLayer {
 public:
  explicit Embedding(const LayerSpec& spec)
      : rows_(spec.rows),
        vocabulary_(size_option(spec, "vocabulary")),
        context_(size_option(spec, "context")),
        outputs_(size_option(spec, "outputs")) {}

  void forward(const Context& on, ConstMemory parameters, ConstMemory input, Memory output, Memory stash,
               std::span<float> /*scratch*/) const noexcept override {
    check(cudaMemcpyAsync(stash.data(), input.data(), rows_ * sizeof(float), cudaMemcpyDeviceToDevice,
                          on.stream),
          "embedding F");
    for_each(on, "embedding F", rows_ * outputs_,
             Forward<T>{input.as<float>(), parameters.as<T>(), parameters.as<T>() + vocabulary_ * outputs_,
                        output.as<T>(), vocabulary_, context_, outputs_});
  }

  /// Token ids have no gradient: zero.
  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory /*stash*/,
                      ConstMemory /*output_gradient*/, Memory input_gradient,
                      std::span<float> /*scratch*/) const noexcept override {
    check(cudaMemsetAsync(input_gradient.data(), 0, rows_ * sizeof(float), on.stream), "embedding B");
  }

  void backward_weights(const Context& on, ConstMemory stash, ConstMemory output_gradient,
                        std::span<float> parameter_gradient,
                        std::span<float> /*scratch*/) const noexcept override {
    const dim3 blocks(static_cast<unsigned>(vocabulary_), static_cast<unsigned>(parts(outputs_, kThreads)));
    launch(on, "embedding W", {blocks, dim3(kThreads)}, add_token_gradients<T>, rows_, outputs_, vocabulary_,
           stash.as<float>(), output_gradient.as<T>(), parameter_gradient.data());
    for_each(
        on, "embedding W", context_ * outputs_,
        AddPositionGradient<T>{output_gradient.as<T>(), parameter_gradient.data() + vocabulary_ * outputs_,
                               rows_, context_ * outputs_, outputs_});
  }

 private:
  std::size_t rows_;
  std::size_t vocabulary_;
  std::size_t context_;
  std::size_t outputs_;
};

const bool registered = register_cuda_layer("embedding", [](const LayerSpec& spec, Precision precision) {
  return make_twin<CudaLayer, Embedding>(precision, spec);
});

}  // namespace
}  // namespace starpipe::model::cuda
