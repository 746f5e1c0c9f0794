// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "starpipe/model/layer.hpp"
#include "starpipe/model/memory_view.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::model {

/// What computes: the calling thread, or a stream of a GPU. Everything that the tasks of a training step do
/// goes through it, so that stages and tasks are written once.
///
/// All memory is the backend's own. What is asked for runs in the order in which it is asked for, and may end
/// after the call has returned (on a GPU: when the stream is there). Nothing allocates or throws. Views do
/// not overlap unless stated.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual void zero(Memory memory) const noexcept = 0;
  /// Of equal sizes.
  virtual void copy(ConstMemory from, Memory to) const noexcept = 0;
  /// sum = a + b of arrays in `precision`, of equal sizes; `sum` may be `a` or `b`.
  virtual void add(Precision precision, ConstMemory a, ConstMemory b, Memory sum) const noexcept = 0;
  /// The first `columns` of `rows` rows, which lie `from_stride` and `to_stride` apart; all in bytes.
  virtual void copy_columns(const std::byte* from, std::size_t from_stride, std::byte* to,
                            std::size_t to_stride, std::size_t columns, std::size_t rows) const noexcept = 0;
  /// Floats to as many bf16.
  virtual void round(std::span<const float> from, Memory to) const noexcept = 0;

  // The passes of a layer and of the loss, in its precision: see Layer and Loss. `parameters`, `input`,
  // `output` and their gradients are arrays in that precision, but ids, targets, `mean` and the parameters'
  // gradient are floats. `stash`: stash_words(), `scratch`: scratch_words(). `input` may be the beginning of
  // `stash` where the layer keeps its input.
  virtual void forward(const Layer& layer, ConstMemory parameters, ConstMemory input, Memory output,
                       Memory stash, Memory scratch) const noexcept = 0;
  virtual void backward_input(const Layer& layer, ConstMemory parameters, ConstMemory stash,
                              ConstMemory output_gradient, Memory input_gradient,
                              Memory scratch) const noexcept = 0;
  virtual void backward_weights(const Layer& layer, ConstMemory stash, ConstMemory output_gradient,
                                std::span<float> parameter_gradient, Memory scratch) const noexcept = 0;
  /// `mean`: one float for the mean loss, or empty.
  virtual void forward(const Loss& loss, ConstMemory input, std::span<const float> target, Memory stash,
                       std::span<float> mean, Memory scratch) const noexcept = 0;
  virtual void backward_input(const Loss& loss, ConstMemory stash, float scale, Memory input_gradient,
                              Memory scratch) const noexcept = 0;

  /// See model::optimizer_step.
  virtual void update(const OptimizerConfig& config, int step, std::span<const float> gradient,
                      std::span<float> parameters, std::span<float> state) const noexcept = 0;
};

/// The calling thread. Thread-safe. In bf16 it computes with a layer's fp32 passes, between numbers that it
/// widens and rounds in the scratch.
const Backend& cpu_backend();

}  // namespace starpipe::model
