// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "starpipe/model/backend.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {

/// One step of a stage: a layer, or one end of a residual connection (`x + f(x)`): `begin` keeps the
/// current activation, `end` adds it. Residual connections nest and never cross a stage.
struct StageOp {
  enum class Kind { layer, residual_begin, residual_end };
  Kind kind = Kind::layer;
  std::shared_ptr<const Layer> layer;  ///< null unless kind is layer
};

/// Consecutive layers that are placed together, with the F, B, W and BW passes over all of them. Matrices and
/// weights are arrays in the stage's precision; ids, targets, losses and weight gradients are floats. All
/// memory is that of the backend that runs the pass, and views never overlap. Immutable; its passes are
/// thread-safe, do not allocate and do not throw.
///
/// A stage reads the data (a source), the output of one stage, or those of several stages, joined by
/// columns. The stage with the loss is the sink: its output is the loss, one float.
class Stage {
 public:
  /// `input_columns`: columns of each input, one entry an input (a source has one: the data's).
  /// Throws std::invalid_argument when the layers do not fit together or are of another precision.
  Stage(std::vector<StageOp> ops, std::size_t rows, std::vector<std::size_t> input_columns,
        std::shared_ptr<const Loss> loss, Precision precision = Precision::fp32);

  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] const std::vector<std::size_t>& input_columns() const { return input_columns_; }
  /// Columns of its output activation. Of a sink: 0, it has none.
  [[nodiscard]] std::size_t output_columns() const;
  [[nodiscard]] bool is_sink() const { return loss_ != nullptr; }
  /// Floats per row of the target, 0 unless a sink.
  [[nodiscard]] std::size_t target_columns() const;

  [[nodiscard]] Precision precision() const { return precision_; }
  /// Whether its input is token ids; else a source's features are in the precision, too.
  [[nodiscard]] bool reads_ids() const { return reads_ids_; }
  /// Whether the optimizer has the parameters as floats besides the weights that passes read.
  [[nodiscard]] bool has_master() const { return precision_ == Precision::bf16 && parameter_size_ > 0; }

  /// How many numbers its parameters are: the floats of their gradient.
  [[nodiscard]] std::size_t parameter_size() const { return parameter_size_; }

  // Sizes in words of 4 bytes.
  /// What passes read as `parameters`.
  [[nodiscard]] std::size_t weights_size() const { return words(precision_, parameter_size_); }
  /// Of an input, and of its gradient.
  [[nodiscard]] std::size_t input_size(std::size_t input) const {
    return matrix_size(reads_ids_ ? Precision::fp32 : precision_, input_columns_[input]);
  }
  /// Of the output activation. Of a sink: 0.
  [[nodiscard]] std::size_t output_size() const { return matrix_size(precision_, output_columns()); }
  [[nodiscard]] std::size_t stash_size() const { return stash_size_; }
  /// What B keeps for W where the backward pass is split.
  [[nodiscard]] std::size_t gradient_stash_size() const { return gradient_stash_size_; }
  /// Working memory of any pass on the device.
  [[nodiscard]] std::size_t scratch_size(bool on_gpu = false) const {
    return 2 * buffer_size_ + residual_size_ + layer_scratch_[on_gpu ? 1 : 0];
  }
  /// Working memory of any pass where F keeps nothing: one layer's stash at a time is part of it.
  [[nodiscard]] std::size_t scratch_size_without_stash(bool on_gpu = false) const {
    return scratch_size(on_gpu) + largest_stash_;
  }

  /// All parameters in the order in which they lie in the stage's parameters.
  [[nodiscard]] std::vector<Parameter> parameters() const;
  /// Estimated floating-point operations of F, of its layers.
  [[nodiscard]] double flops() const;
  [[nodiscard]] const std::vector<StageOp>& ops() const { return ops_; }
  [[nodiscard]] const std::shared_ptr<const Loss>& loss() const { return loss_; }

  /// F. `output`: rows x output_columns, or for a sink one float, the micro-batch's mean loss. `target` is
  /// empty unless a sink. `output` may be empty, when only the stash is wanted, and so may `stash`, which is
  /// then not kept; `scratch` must have scratch_size_without_stash() words for that.
  void forward(ConstMemory parameters, std::span<const ConstMemory> inputs, ConstMemory target, Memory output,
               Memory stash, Memory scratch, const Backend& backend = cpu_backend()) const noexcept;

  /// B. `output_gradients`: one rows x output_columns matrix for each succeeding stage, summed; none for a
  /// sink, which starts from `loss_scale`, the weight of the micro-batch's mean loss in the objective
  /// (ignored elsewhere). `input_gradients`: one matrix an input; none for a source.
  void backward_input(ConstMemory parameters, ConstMemory stash,
                      std::span<const ConstMemory> output_gradients, float loss_scale,
                      std::span<const Memory> input_gradients, Memory gradient_stash, Memory scratch,
                      const Backend& backend = cpu_backend()) const noexcept;

  /// W: adds to `parameter_gradient`.
  void backward_weights(ConstMemory stash, ConstMemory gradient_stash, Memory parameter_gradient,
                        Memory scratch, const Backend& backend = cpu_backend()) const noexcept;

  /// BW: as backward_input and then backward_weights, without a gradient stash.
  void backward(ConstMemory parameters, ConstMemory stash, std::span<const ConstMemory> output_gradients,
                float loss_scale, std::span<const Memory> input_gradients, Memory parameter_gradient,
                Memory scratch, const Backend& backend = cpu_backend()) const noexcept;

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  /// Where what an op has lies, in words but for the parameters, which are counted.
  struct Place {
    std::size_t parameters = 0, parameter_size = 0;
    std::size_t stash = 0, stash_size = 0;
    std::size_t gradient = 0;  ///< in the gradient stash, for layers with parameters
    std::size_t columns = 0;   ///< of the op's output
    std::size_t partner = 0;   ///< the op at the other end of the residual connection
    std::size_t residual = 0;  ///< where what the connection keeps may lie, in the scratch for it
  };

  /// values_[i]: what ops_[i] reads and the op before it writes. Value and gradient are written to where they
  /// are needed next, so that nothing is copied; kNone: not needed there. A connection's begin writes no
  /// value of its own, its end no gradient.
  struct Value {
    std::size_t size = 0;
    std::size_t stash = kNone;              ///< of the layer that reads it, which keeps its input
    std::size_t residual = kNone;           ///< of the connection that begins here
    std::size_t gradient = kNone;           ///< in the gradient stash, of the layer that wrote it
    std::size_t gradient_residual = kNone;  ///< of the connection that ends here
  };

  [[nodiscard]] std::size_t matrix_size(Precision precision, std::size_t columns) const {
    return words(precision, rows_ * columns);
  }
  [[nodiscard]] ConstMemory weights_of(const Place& place, ConstMemory parameters) const;

  // Parts of the constructor. They throw as it does.
  void add_layer(std::size_t op, std::size_t& columns, Place& place);
  void add_loss(std::size_t columns);
  void find_places();

  [[nodiscard]] bool is(StageOp::Kind kind, std::size_t op) const {
    return op < ops_.size() && ops_[op].kind == kind;
  }
  /// The value that ops_[op] reads: that before the connections which begin there.
  [[nodiscard]] std::size_t value_read(std::size_t op) const;
  /// The value whose gradient is that of ops_[op]'s output: that behind the connections which end there.
  [[nodiscard]] std::size_t value_given(std::size_t op) const;

  /// The parts of a pass's scratch. `kept` is where a layer's stash is that is not kept, if one is wanted.
  struct Scratch {
    std::array<Memory, 2> buffers;
    Memory residuals;
    Memory kept;
    Memory layer;
    [[nodiscard]] Memory other(ConstMemory than) const {
      return buffers[than.data() == buffers[0].data() ? 1 : 0];
    }
  };
  [[nodiscard]] Scratch divide(Memory scratch, bool with_kept) const;

  /// B, and where `parameter_gradient` is not empty W with it; keeps a gradient stash where there is one.
  void run_backward(ConstMemory parameters, ConstMemory stash, std::span<const ConstMemory> output_gradients,
                    float loss_scale, std::span<const Memory> input_gradients, Memory gradient_stash,
                    Memory parameter_gradient, Memory scratch, const Backend& backend) const noexcept;

  std::vector<StageOp> ops_;
  std::vector<Place> places_;
  std::vector<Value> values_;  ///< one more than ops
  std::size_t rows_;
  std::vector<std::size_t> input_columns_;
  std::shared_ptr<const Loss> loss_;
  Precision precision_;
  bool reads_ids_ = false;
  std::size_t parameter_size_ = 0;
  std::size_t stash_size_ = 0;
  std::size_t gradient_stash_size_ = 0;
  std::size_t largest_stash_ = 0;  ///< of one layer or the loss
  // The scratch: two activations of this size in turn, the open residual connections, the layers' own.
  std::size_t buffer_size_ = 0;
  std::size_t residual_size_ = 0;
  std::array<std::size_t, 2> layer_scratch_ = {};  ///< on a CPU, on a GPU
  std::size_t joined_columns_ = 0;
  std::size_t first_with_parameters_ = 0;  ///< op; ops_.size() when none has
};

}  // namespace starpipe::model
