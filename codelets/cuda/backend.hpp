// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codelets/cuda/context.hpp"
#include "starpipe/model/backend.hpp"

namespace starpipe::model::cuda {

/// A stream of a GPU: spans are memory of its device, what is asked for is enqueued. The stream's device must
/// be the current one. Layers and losses must have a twin (`cuda()`). What CUDA refuses ends the process
/// after one line on standard error.
class StreamBackend final : public Backend {
 public:
  explicit StreamBackend(const Context& on) : on_(on) {}

  void zero(std::span<float> values) const noexcept override;
  void copy(std::span<const float> from, std::span<float> to) const noexcept override;
  void add(std::span<const float> a, std::span<const float> b, std::span<float> sum) const noexcept override;
  void copy_columns(const float* from, std::size_t from_stride, float* to, std::size_t to_stride,
                    std::size_t columns, std::size_t rows) const noexcept override;

  void forward(const Layer& layer, std::span<const float> parameters, std::span<const float> input,
               std::span<float> output, std::span<float> stash,
               std::span<float> scratch) const noexcept override;
  void backward_input(const Layer& layer, std::span<const float> parameters, std::span<const float> stash,
                      std::span<const float> output_gradient, std::span<float> input_gradient,
                      std::span<float> scratch) const noexcept override;
  void backward_weights(const Layer& layer, std::span<const float> stash,
                        std::span<const float> output_gradient, std::span<float> parameter_gradient,
                        std::span<float> scratch) const noexcept override;
  void forward(const Loss& loss, std::span<const float> input, std::span<const float> target,
               std::span<float> stash, std::span<float> mean,
               std::span<float> scratch) const noexcept override;
  void backward_input(const Loss& loss, std::span<const float> stash, float scale,
                      std::span<float> input_gradient) const noexcept override;

  void update(const OptimizerConfig& config, int step, std::span<const float> gradient,
              std::span<float> parameters, std::span<float> state) const noexcept override;

 private:
  Context on_;
};

}  // namespace starpipe::model::cuda
