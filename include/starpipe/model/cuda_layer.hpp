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
class CudaLayer : public DevicePasses {
 public:
  explicit CudaLayer(const LayerSpec& spec) : rows_(spec.rows), columns_(spec.columns) {}
  virtual ~CudaLayer() = default;

  /// Returns the number of floats of scratch, enough for each of the passes.
  [[nodiscard]] virtual std::size_t scratch_size() const { return 0; }

  virtual void forward(const cuda::Context& on, const Forward& pass) const noexcept = 0;
  virtual void backward_input(const cuda::Context& on, const Backward& pass) const noexcept = 0;
  virtual void backward_weights(const cuda::Context& /*on*/, const Weights& /*pass*/) const noexcept {}

 protected:
  std::size_t rows_;
  std::size_t columns_;  ///< of the input
};

/// The CUDA implementation of a loss. The scratch of F has the loss's rows() floats.
class CudaLoss {
 public:
  CudaLoss(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns) {}
  virtual ~CudaLoss() = default;

  virtual void forward(const cuda::Context& on, const LossForward& pass) const noexcept = 0;
  virtual void backward_input(const cuda::Context& on, const LossBackward& pass) const noexcept = 0;

 protected:
  std::size_t rows_;
  std::size_t columns_;
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
