// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "starpipe/model/layer.hpp"
#include "starpipe/model/memory_view.hpp"

namespace starpipe::model {

namespace cuda {
struct Context;  // a stream and its libraries: codelets/cuda/device/context.hpp
}

/// The passes of a layer on a GPU, with the meaning, shapes and stash of the Layer whose twin it is, and in
/// its precision: arrays as Backend has them.
///
/// All memory is the GPU's. Passes only enqueue work on the context's stream: they do not wait, allocate
/// (after a thread's first ones) or throw. Sums are in an order that the code fixes, so that two runs are
/// bitwise equal. What CUDA refuses (a lost GPU) ends the process after one line on standard error.
class CudaLayer {
 public:
  virtual ~CudaLayer() = default;

  /// Floats of working memory that any of the passes needs.
  [[nodiscard]] virtual std::size_t scratch_size() const { return 0; }

  virtual void forward(const cuda::Context& on, ConstMemory parameters, ConstMemory input, Memory output,
                       Memory stash, std::span<float> scratch) const noexcept = 0;
  virtual void backward_input(const cuda::Context& on, ConstMemory parameters, ConstMemory stash,
                              ConstMemory output_gradient, Memory input_gradient,
                              std::span<float> scratch) const noexcept = 0;
  virtual void backward_weights(const cuda::Context& /*on*/, ConstMemory /*stash*/,
                                ConstMemory /*output_gradient*/, std::span<float> /*parameter_gradient*/,
                                std::span<float> /*scratch*/) const noexcept {}
};

/// The same for a loss.
class CudaLoss {
 public:
  virtual ~CudaLoss() = default;

  /// `mean`: one float for the mean loss, or empty. `scratch`: the loss's rows() floats.
  virtual void forward(const cuda::Context& on, ConstMemory input, std::span<const float> target,
                       Memory stash, std::span<float> mean, std::span<float> scratch) const noexcept = 0;
  virtual void backward_input(const cuda::Context& on, ConstMemory stash, float scale,
                              Memory input_gradient) const noexcept = 0;
};

/// The twin of a layer with a valid specification, or null when the kernels cannot work with it.
using CudaLayerFactory = std::function<std::shared_ptr<const CudaLayer>(const LayerSpec&, Precision)>;
using CudaLossFactory =
    std::function<std::shared_ptr<const CudaLoss>(std::size_t rows, std::size_t columns, Precision)>;

/// Adds the twin of a kind; call from a file-scope initialiser. Layers made afterwards have it. Returns true;
/// throws std::logic_error when taken.
bool register_cuda_layer(std::string kind, CudaLayerFactory factory);
bool register_cuda_loss(std::string kind, CudaLossFactory factory);

}  // namespace starpipe::model
