// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels/column_sums.cuh"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// One warp per row: output[row] = input[row] + positions[row % context].
template <class T, int N>
__global__ void add_positions(std::size_t rows, std::size_t columns, std::size_t context,
                              const T* __restrict__ input, const T* __restrict__ positions,
                              T* __restrict__ output) {
  const std::size_t row = Team<false>::row();
  if (row >= rows) return;
  const T* const position = positions + row % context * columns;
  for (std::size_t c = std::size_t{Team<false>::lane()} * N; c < columns; c += warp_size * N) {
    Values<N> y = load<N>(input + row * columns + c);
    const Values<N> at = load<N>(position + c);
    for (int k = 0; k < N; ++k) y[k] += at[k];
    store(output + row * columns + c, y);
  }
}

/// codelets/cpu/positions.cpp on a GPU.
template <class T>
class Positions final : public CudaLayer {
 public:
  explicit Positions(const LayerSpec& spec)
      : rows_(spec.rows), columns_(spec.columns), context_(size_option(spec, "context")) {}

  void forward(const Context& on, ConstMemory parameters, ConstMemory input, Memory output, Memory /*stash*/,
               FloatView /*scratch*/) const noexcept override {
    const T* x = input.as<T>();
    const T* positions = parameters.as<T>();
    T* y = output.as<T>();
    with_pack_size<pack_size<T>>(columns_ % pack_size<T> == 0 && pack_aligned(x, positions, y),
                                 [&](auto size) {
                                   launch(on, "positions F", warp_per_row(rows_), add_positions<T, size>,
                                          rows_, columns_, context_, x, positions, y);
                                 });
  }

  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory /*stash*/,
                      ConstMemory output_gradient, Memory input_gradient,
                      FloatView /*scratch*/) const noexcept override {
    check(cudaMemcpyAsync(input_gradient.data(), output_gradient.data(), rows_ * columns_ * sizeof(T),
                          cudaMemcpyDeviceToDevice, on.stream),
          "positions B");
  }

  /// Sums over the sequences, with a sequence as one row of context_ * columns_ columns.
  void backward_weights(const Context& on, ConstMemory /*stash*/, ConstMemory output_gradient,
                        FloatView parameter_gradient, FloatView /*scratch*/) const noexcept override {
    add_column_sums(on, "positions W", rows_ / context_, context_ * columns_,
                    Elements<T>{output_gradient.as<T>()}, parameter_gradient.data(), {});
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
  std::size_t context_;
};

const bool registered = register_implementation<Positions>("positions");

}  // namespace
}  // namespace starpipe::model::cuda
