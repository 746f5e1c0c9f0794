// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "starpipe/model/layer.hpp"
#include "starpipe/model/memory_view.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::model {

/// The device that computes: the calling thread, or a stream of a GPU. All work of a training step's tasks
/// goes through it, so that stages and tasks are written once for all devices.
///
/// All views are of the device's memory. Calls take effect in their order; on a GPU a call returns once its
/// work is enqueued on the stream. Nothing allocates or throws. Views do not overlap unless stated.
class Backend : public DevicePasses {
 public:
  virtual ~Backend() = default;

  virtual void zero(Memory memory) const noexcept = 0;
  /// Both views have the same size.
  virtual void copy(ConstMemory from, Memory to) const noexcept = 0;
  /// sum = a + b for arrays in `precision`, all of the same size; `sum` may be `a` or `b`.
  virtual void add(Precision precision, ConstMemory a, ConstMemory b, Memory sum) const noexcept = 0;
  /// Copies the first `columns` bytes of each of `rows` rows, which begin `from_stride` and `to_stride` bytes
  /// apart.
  virtual void copy_columns(const std::byte* from, std::size_t from_stride, std::byte* to,
                            std::size_t to_stride, std::size_t columns, std::size_t rows) const noexcept = 0;
  /// Rounds the floats to as many bf16.
  virtual void round(ConstFloatView from, Memory to) const noexcept = 0;
  /// Sets `found` to 1 if one of the first `count` numbers of `values`, an array in `precision`, is infinite
  /// or NaN; else leaves it as it is. On a GPU `found` is memory of the host that the GPU can write to.
  virtual void find_nonfinite(Precision precision, ConstMemory values, std::size_t count,
                              float& found) const noexcept = 0;

  // The passes of a layer and of the loss: see Layer and Loss. Parameters, inputs, outputs and the gradients
  // of inputs and outputs are arrays in the layer's precision; token ids and targets are floats. The stash
  // has stash_words() words, the scratch at least scratch_words(). The input may be the beginning of the
  // stash where the layer keeps_input().
  virtual void forward(const Layer& layer, const Forward& pass) const noexcept = 0;
  virtual void backward_input(const Layer& layer, const Backward& pass) const noexcept = 0;
  virtual void backward_weights(const Layer& layer, const Weights& pass) const noexcept = 0;
  virtual void forward(const Loss& loss, const LossForward& pass) const noexcept = 0;
  virtual void backward_input(const Loss& loss, const LossBackward& pass) const noexcept = 0;

  /// See model::optimizer_step.
  virtual void update(const OptimizerConfig& config, const Update& update, ConstFloatView gradient,
                      FloatView parameters, FloatView state) const noexcept = 0;
  /// sums[i] = sum_of_squares() of the i-th part of `values`, which has sizes[i] numbers; the parts follow
  /// each other. `sums` is memory of the host, and is written when the calls before it have taken effect. On
  /// a GPU `scratch` has norm_scratch_words(sizes) words.
  virtual void sum_squares(ConstFloatView values, std::span<const std::size_t> sizes, std::span<double> sums,
                           Memory scratch) const noexcept = 0;
};

/// Returns the backend of the calling thread. Thread-safe. A layer in bf16 that has no passes on bf16 runs
/// its fp32 passes: its arrays are widened to floats in the scratch first, and the results are rounded to
/// bf16 afterwards.
const Backend& cpu_backend();

}  // namespace starpipe::model
