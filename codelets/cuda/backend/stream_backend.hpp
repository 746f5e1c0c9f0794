// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "codelets/cuda/kernels/device.hpp"
#include "starpipe/model/backend.hpp"
#include "starpipe/model/cuda_layer.hpp"
#include "starpipe/model/memory_view.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::model::cuda {

/// A stream of a GPU. All memory is the GPU's, and each function only enqueues its work on the stream. The
/// stream's device must be the calling thread's current one. Layers and losses must have a CUDA
/// implementation (`cuda()`). An error of CUDA ends the process after one line on standard error.
class StreamBackend final : public Backend {
 public:
  explicit StreamBackend(const Context& on) : on_(on) {}

  void zero(Memory memory) const noexcept override;
  void copy(ConstMemory from, Memory to) const noexcept override;
  void add(Precision precision, ConstMemory a, ConstMemory b, Memory sum) const noexcept override;
  void copy_columns(const std::byte* from, std::size_t from_stride, std::byte* to, std::size_t to_stride,
                    std::size_t columns, std::size_t rows) const noexcept override;
  void round(ConstFloatView from, Memory to) const noexcept override;
  void find_nonfinite(Precision precision, ConstMemory values, std::size_t count,
                      float& found) const noexcept override;

  void forward(const Layer& layer, const Forward& pass) const noexcept override {
    layer.cuda()->forward(on_, pass);
  }
  void backward_input(const Layer& layer, const Backward& pass) const noexcept override {
    layer.cuda()->backward_input(on_, pass);
  }
  void backward_weights(const Layer& layer, const Weights& pass) const noexcept override {
    layer.cuda()->backward_weights(on_, pass);
  }
  void forward(const Loss& loss, const LossForward& pass) const noexcept override {
    loss.cuda()->forward(on_, pass);
  }
  void backward_input(const Loss& loss, const LossBackward& pass) const noexcept override {
    loss.cuda()->backward_input(on_, pass);
  }

  void update(const OptimizerConfig& config, const Update& update, ConstFloatView gradient,
              FloatView parameters, FloatView state) const noexcept override;
  void sum_squares(ConstFloatView values, std::span<const std::size_t> sizes, std::span<double> sums,
                   Memory scratch) const noexcept override;

 private:
  Context on_;
};

}  // namespace starpipe::model::cuda
