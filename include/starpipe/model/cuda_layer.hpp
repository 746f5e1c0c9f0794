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
struct Context;  // a stream and a cuBLASLt handle: codelets/cuda/kernels/device.hpp
}

/// The CUDA implementation of a layer: its passes on a GPU. They have the meaning, shapes and stash of the
/// Layer's own passes, on arrays in the layer's precision, as in Backend.
///
/// All memory is the GPU's. Passes only enqueue work on the context's stream: they neither wait nor throw,
/// and only a thread's first passes allocate. Sums have an order that the code fixes, so that two runs are
/// bitwise equal. An error of CUDA (a lost GPU) ends the process after one line on standard error.
class CudaLayer {
 public:
  virtual ~CudaLayer() = default;

  /// Floats of scratch (working memory), enough for each of the passes.
  [[nodiscard]] virtual std::size_t scratch_size() const { return 0; }

  virtual void forward(const cuda::Context& on, ConstMemory parameters, ConstMemory input, Memory output,
                       Memory stash, FloatView scratch) const noexcept = 0;
  virtual void backward_input(const cuda::Context& on, ConstMemory parameters, ConstMemory stash,
                              ConstMemory output_gradient, Memory input_gradient,
                              FloatView scratch) const noexcept = 0;
  virtual void backward_weights(const cuda::Context& /*on*/, ConstMemory /*stash*/,
                                ConstMemory /*output_gradient*/, FloatView /*parameter_gradient*/,
                                FloatView /*scratch*/) const noexcept {}
};

/// The CUDA implementation of a loss.
class CudaLoss {
 public:
  virtual ~CudaLoss() = default;

  /// `mean`: one float for the mean loss, or empty. `scratch`: the loss's rows() floats.
  virtual void forward(const cuda::Context& on, ConstMemory input, ConstFloatView target, Memory stash,
                       FloatView mean, FloatView scratch) const noexcept = 0;
  virtual void backward_input(const cuda::Context& on, ConstMemory stash, float scale,
                              Memory input_gradient) const noexcept = 0;
};

/// Makes the CUDA implementation of a layer with a valid specification; null if the kernels cannot work
/// with it.
using CudaLayerFactory = std::function<std::shared_ptr<const CudaLayer>(const LayerSpec&, Precision)>;
using CudaLossFactory =
    std::function<std::shared_ptr<const CudaLoss>(std::size_t rows, std::size_t columns, Precision)>;

/// Registers the CUDA implementation of a kind of layer or loss, from a file-scope initialiser: layers made
/// afterwards have the implementation. Returns false as register_layer() does.
bool register_cuda_layer(std::string kind, CudaLayerFactory factory);
bool register_cuda_loss(std::string kind, CudaLossFactory factory);

}  // namespace starpipe::model
