// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "starpipe/model/backend.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {

/// One step of a stage: a layer, or one end of a residual connection (`x + f(x)`): `begin` keeps a copy
/// of the current activation, `end` adds it. Residual connections nest and never cross a stage.
struct StageOp {
  enum class Kind { layer, residual_begin, residual_end };
  Kind kind = Kind::layer;
  std::shared_ptr<const Layer> layer;  ///< null unless kind is layer
};

/// Consecutive layers that are placed together, with the F, B, W and BW passes over all of them. All spans
/// are fp32, memory of the backend that runs the pass, and never overlap. Immutable; its passes are
/// thread-safe, do not allocate and do not throw.
///
/// A stage reads the data (a source), the output of one stage, or those of several stages, joined by
/// columns. The stage with the loss is the sink: its output is the loss, one float.
class Stage {
 public:
  /// `input_columns`: columns of each input, one entry an input (a source has one: the data's).
  /// Throws std::invalid_argument when the layers do not fit together.
  Stage(std::vector<StageOp> ops, std::size_t rows, std::vector<std::size_t> input_columns,
        std::shared_ptr<const Loss> loss);

  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] const std::vector<std::size_t>& input_columns() const { return input_columns_; }
  /// Columns of its output activation. Of a sink: 0, it has none.
  [[nodiscard]] std::size_t output_columns() const;
  [[nodiscard]] bool is_sink() const { return loss_ != nullptr; }
  /// Floats per row of the target, 0 unless a sink.
  [[nodiscard]] std::size_t target_columns() const;

  // Sizes in floats.
  [[nodiscard]] std::size_t parameter_size() const { return parameter_size_; }
  [[nodiscard]] std::size_t stash_size() const { return stash_size_; }
  /// What B keeps for W where the backward pass is split.
  [[nodiscard]] std::size_t gradient_stash_size() const { return gradient_stash_size_; }
  /// Working memory of any pass.
  [[nodiscard]] std::size_t scratch_size() const { return scratch_size_; }
  /// Working memory of any pass where F keeps nothing: one layer's stash at a time is part of it.
  [[nodiscard]] std::size_t scratch_size_without_stash() const { return scratch_size_ + largest_stash_; }

  /// All parameters in the order in which they lie in the stage's parameter span.
  [[nodiscard]] std::vector<Parameter> parameters() const;
  /// Estimated floating-point operations of F, of its layers.
  [[nodiscard]] double flops() const;
  [[nodiscard]] const std::vector<StageOp>& ops() const { return ops_; }
  [[nodiscard]] const std::shared_ptr<const Loss>& loss() const { return loss_; }

  /// F. `output`: rows x output_columns, or for a sink one float, the micro-batch's mean loss. `target` is
  /// empty unless a sink. `output` may be empty, when only the stash is wanted, and so may `stash`, which is
  /// then not kept; `scratch` must have scratch_size_without_stash() floats for that.
  void forward(std::span<const float> parameters, std::span<const std::span<const float>> inputs,
               std::span<const float> target, std::span<float> output, std::span<float> stash,
               std::span<float> scratch, const Backend& backend = cpu_backend()) const noexcept;

  /// B. `output_gradients`: one rows x output_columns matrix for each succeeding stage, summed; none for a
  /// sink, which starts from `loss_scale`, the weight of the micro-batch's mean loss in the objective
  /// (ignored elsewhere). `input_gradients`: one matrix an input; none for a source.
  void backward_input(std::span<const float> parameters, std::span<const float> stash,
                      std::span<const std::span<const float>> output_gradients, float loss_scale,
                      std::span<const std::span<float>> input_gradients, std::span<float> gradient_stash,
                      std::span<float> scratch, const Backend& backend = cpu_backend()) const noexcept;

  /// W: adds to `parameter_gradient`.
  void backward_weights(std::span<const float> stash, std::span<const float> gradient_stash,
                        std::span<float> parameter_gradient, std::span<float> scratch,
                        const Backend& backend = cpu_backend()) const noexcept;

  /// BW: as backward_input and then backward_weights, without a gradient stash.
  void backward(std::span<const float> parameters, std::span<const float> stash,
                std::span<const std::span<const float>> output_gradients, float loss_scale,
                std::span<const std::span<float>> input_gradients, std::span<float> parameter_gradient,
                std::span<float> scratch, const Backend& backend = cpu_backend()) const noexcept;

 private:
  /// Where the floats of an op lie in the stage's spans.
  struct Place {
    std::size_t parameters = 0, parameter_size = 0;
    std::size_t stash = 0, stash_size = 0;
    std::size_t gradient = 0;  ///< in the gradient stash, for layers with parameters
    std::size_t columns = 0;   ///< of the op's output
  };

  /// B, and where `parameter_gradient` is not empty W with it; keeps a gradient stash where there is one.
  void run_backward(std::span<const float> parameters, std::span<const float> stash,
                    std::span<const std::span<const float>> output_gradients, float loss_scale,
                    std::span<const std::span<float>> input_gradients, std::span<float> gradient_stash,
                    std::span<float> parameter_gradient, std::span<float> scratch,
                    const Backend& backend) const noexcept;

  std::vector<StageOp> ops_;
  std::vector<Place> places_;
  std::size_t rows_;
  std::vector<std::size_t> input_columns_;
  std::shared_ptr<const Loss> loss_;
  std::size_t parameter_size_ = 0;
  std::size_t stash_size_ = 0;
  std::size_t gradient_stash_size_ = 0;
  std::size_t scratch_size_ = 0;
  std::size_t largest_stash_ = 0;  // of one layer or the loss
  // The scratch: two activations of this size in turn, the open residual connections, the layers' own.
  std::size_t buffer_size_ = 0;
  std::size_t residual_size_ = 0;
  std::size_t joined_columns_ = 0;
  std::size_t first_with_parameters_ = 0;  ///< op; ops_.size() when none has
};

}  // namespace starpipe::model
