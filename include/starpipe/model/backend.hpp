// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "starpipe/model/layer.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::model {

/// What computes: the calling thread, or a stream of a GPU. Everything that the tasks of a training step do
/// goes through it, so that stages and tasks are written once.
///
/// The memory of all spans is the backend's own. What is asked for runs in the order in which it is asked
/// for, and may end after the call has returned (on a GPU: when the stream is there). Nothing allocates or
/// throws. Spans do not overlap unless stated.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual void zero(std::span<float> values) const noexcept = 0;
  /// Of equal sizes.
  virtual void copy(std::span<const float> from, std::span<float> to) const noexcept = 0;
  /// sum = a + b, of equal sizes; `sum` may be `a` or `b`.
  virtual void add(std::span<const float> a, std::span<const float> b,
                   std::span<float> sum) const noexcept = 0;
  /// The first `columns` of `rows` rows, which lie `from_stride` and `to_stride` floats apart.
  virtual void copy_columns(const float* from, std::size_t from_stride, float* to, std::size_t to_stride,
                            std::size_t columns, std::size_t rows) const noexcept = 0;

  // The passes of a layer and of the loss: see Layer and Loss.
  virtual void forward(const Layer& layer, std::span<const float> parameters, std::span<const float> input,
                       std::span<float> output, std::span<float> stash,
                       std::span<float> scratch) const noexcept = 0;
  virtual void backward_input(const Layer& layer, std::span<const float> parameters,
                              std::span<const float> stash, std::span<const float> output_gradient,
                              std::span<float> input_gradient, std::span<float> scratch) const noexcept = 0;
  virtual void backward_weights(const Layer& layer, std::span<const float> stash,
                                std::span<const float> output_gradient, std::span<float> parameter_gradient,
                                std::span<float> scratch) const noexcept = 0;
  /// `mean`: one float for the mean loss, or empty. `scratch`: loss.rows() floats.
  virtual void forward(const Loss& loss, std::span<const float> input, std::span<const float> target,
                       std::span<float> stash, std::span<float> mean,
                       std::span<float> scratch) const noexcept = 0;
  virtual void backward_input(const Loss& loss, std::span<const float> stash, float scale,
                              std::span<float> input_gradient) const noexcept = 0;

  /// See model::optimizer_step.
  virtual void update(const OptimizerConfig& config, int step, std::span<const float> gradient,
                      std::span<float> parameters, std::span<float> state) const noexcept = 0;
};

/// The calling thread. Thread-safe.
const Backend& cpu_backend();

}  // namespace starpipe::model
