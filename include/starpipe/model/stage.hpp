// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "starpipe/model/backend.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {

/// One operation of a stage: a layer, or one end of a residual connection (`x + f(x)`). `residual_begin`
/// keeps the current activation, `residual_end` adds it. Residual connections nest and never leave a stage.
struct StageOp {
  enum class Kind { layer, residual_begin, residual_end };
  Kind kind = Kind::layer;
  std::shared_ptr<const Layer> layer;  ///< null unless kind is layer
  /// The name of the set of parameters that the layer shares with other layers, of this stage or another one.
  /// Layers with the same set have parameters of the same sizes, which lie in the same order. Empty: the
  /// parameters are the layer's own.
  std::string shared = {};
  /// For a shard's layer: the part of the saved tensor of each of its parameters, in order. Empty: the
  /// parameters are whole tensors.
  std::vector<Piece> pieces = {};
};

/// Returns the estimated floating-point operations of F for one micro-batch: the sum of the layers' flops().
double flops(std::span<const StageOp> ops);

/// The way in which a stage makes one matrix of several inputs.
enum class Join : std::uint8_t {
  columns,  ///< side by side
  add,      ///< their sum, from the first to the last
};

/// A shared set of parameters that a stage uses. Its parameters have the names that the first such layer of
/// this stage gives them.
struct SharedParameters {
  std::string name;
  std::vector<Parameter> parameters;
  std::size_t size = 0;  ///< number of values of all parameters together
};

/// Views of the parameters of a stage, or of their gradients: `own`, and one view for each shared set, in the
/// order of Stage::shared(). For a stage that shares no set, a single view converts to this.
template <class View>
struct ParameterViews {
  ParameterViews() = default;
  ParameterViews(View its_own, std::span<const View> of_sets) : own(its_own), shared(of_sets) {}
  // NOLINTBEGIN(bugprone-forwarding-reference-overload): it is not a view
  template <class Single>
  requires(!std::same_as<std::remove_cvref_t<Single>, ParameterViews> && std::convertible_to<Single, View>)
      ParameterViews(Single&& single)
      : own(std::forward<Single>(single)) {}
  // NOLINTEND(bugprone-forwarding-reference-overload)

  [[nodiscard]] bool empty() const { return own.empty() && shared.empty(); }

  View own;
  std::span<const View> shared;
};
using ConstParameters = ParameterViews<ConstMemory>;
using ParameterGradients = ParameterViews<Memory>;

/// Further arrays of F, for a stage that has a slice of each sequence.
struct SliceForward {
  std::span<const ConstMemory> keys_values;  ///< of the slices before, in order
  Memory own;                                ///< F writes the slice's own keys and values
};
/// Further arrays of its backward pass.
struct SliceBackward {
  std::span<const ConstMemory> keys_values;  ///< of the slices before, in order, and last its own
  /// The gradients of `keys_values` that the slices after have added up. Empty in the last slice.
  ConstFloatView gradient;
  /// The pass writes the gradients for the slices before. Empty in the first slice.
  FloatView earlier_gradient;
};

/// Consecutive layers that are placed together, with the F, B, W and BW passes over all of them. Activations,
/// their gradients and weights are arrays in the stage's precision; token ids, targets, losses, weight
/// gradients and the outputs of layers that write floats are floats. All views are of the memory of the
/// backend that runs the pass, and never overlap. Immutable; its passes are thread-safe, do not allocate and
/// do not throw.
///
/// A stage that reads the data is a source. Other stages read the outputs of one or several stages, joined by
/// columns or added. The stage with the loss is the sink: its output is the loss, one float. The sink may
/// read the target, and so may a stage with a layer that reads it.
class Stage {
 public:
  /// `input_columns`: the columns of each input; a source has one input, the data. Throws
  /// std::invalid_argument when the layers do not fit together or have another precision, and when inputs to
  /// add differ in their columns.
  Stage(std::vector<StageOp> ops, std::size_t rows, std::vector<std::size_t> input_columns,
        std::shared_ptr<const Loss> loss, Precision precision = Precision::fp32, Join join = Join::columns);

  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] const std::vector<std::size_t>& input_columns() const { return input_columns_; }
  /// True if the stage adds several inputs. Their gradients are then the same matrix, which B writes once.
  [[nodiscard]] bool adds_inputs() const { return join_ == Join::add && input_columns_.size() > 1; }
  /// Returns the number of columns of the output activation; 0 for a sink, which has none.
  [[nodiscard]] std::size_t output_columns() const;
  [[nodiscard]] bool is_sink() const { return loss_ != nullptr; }
  /// Returns the number of floats per row of the target; 0 for a stage that does not read it.
  [[nodiscard]] std::size_t target_columns() const { return target_columns_; }

  [[nodiscard]] Precision precision() const { return precision_; }
  /// Returns the precision of the output activation and its gradient: fp32 if the last layer writes floats.
  [[nodiscard]] Precision output_precision() const { return output_precision_; }
  /// True if the input is token ids, which are floats. All other inputs are in the stage's precision.
  [[nodiscard]] bool reads_ids() const { return reads_ids_; }
  /// True if the optimizer keeps an fp32 master of the parameters, besides the weights that passes read.
  [[nodiscard]] bool has_master() const { return precision_ == Precision::bf16 && parameter_size_ > 0; }

  /// Returns the number of values of all the stage's own parameters. Their gradient has as many floats.
  [[nodiscard]] std::size_t parameter_size() const { return parameter_size_; }

  // Sizes in words of 4 bytes.
  /// The `parameters` that passes read.
  [[nodiscard]] std::size_t weights_size() const { return words(precision_, parameter_size_); }
  /// Returns the size of an input, and of its gradient. `input`: index in input_columns().
  [[nodiscard]] std::size_t input_size(std::size_t input) const {
    return matrix_size(reads_ids_ ? Precision::fp32 : precision_, input_columns_[input]);
  }
  /// Returns the size of the output activation, and of its gradient; 0 for a sink.
  [[nodiscard]] std::size_t output_size() const { return matrix_size(output_precision_, output_columns()); }
  [[nodiscard]] std::size_t stash_size() const { return stash_size_; }
  /// Returns the size of the gradients that B keeps for W where the backward pass is split.
  [[nodiscard]] std::size_t gradient_stash_size() const { return gradient_stash_size_; }
  /// Returns the size of what later slices of the same sequences read of this one; 0 without slices.
  [[nodiscard]] std::size_t keys_values_size() const { return keys_values_size_; }
  /// Returns the size of their gradient, which is floats in any precision.
  [[nodiscard]] std::size_t keys_values_gradient_size() const { return handed_back_size_ - earlier_size_; }
  /// Returns the size of the gradient of the keys and values of the slices before, which a slice hands to the
  /// one before it.
  [[nodiscard]] std::size_t earlier_gradient_size() const { return earlier_size_; }
  /// Returns the size of the scratch (working memory) on a GPU or a CPU, enough for each of the passes.
  [[nodiscard]] std::size_t scratch_size(bool on_gpu = false) const {
    return 2 * buffer_size_ + residual_size_ + layer_scratch_[on_gpu ? 1 : 0];
  }
  /// Returns the size of the scratch of an F that keeps no stash: with room for the stash of one layer at a
  /// time.
  [[nodiscard]] std::size_t scratch_size_without_stash(bool on_gpu = false) const {
    return scratch_size(on_gpu) + largest_stash_;
  }

  /// Returns the stage's own parameters, in the order in which they lie in `parameters.own`.
  [[nodiscard]] std::vector<Parameter> parameters() const;
  /// Returns the sets of parameters that the stage shares, in the order of their first layers.
  [[nodiscard]] const std::vector<SharedParameters>& shared() const { return shared_; }
  /// Returns the estimated floating-point operations of F for one micro-batch.
  [[nodiscard]] double flops() const { return model::flops(ops_); }
  [[nodiscard]] const std::vector<StageOp>& ops() const { return ops_; }
  [[nodiscard]] const std::shared_ptr<const Loss>& loss() const { return loss_; }

  /// F. `output`: rows x output_columns, or for a sink one float, the micro-batch's mean loss. `target` is
  /// empty unless the stage reads it. `output` may be empty: then F only fills the stash. `stash` may be
  /// empty: then F keeps none, and `scratch` must have scratch_size_without_stash() words.
  void forward(ConstParameters parameters, std::span<const ConstMemory> inputs, ConstMemory target,
               Memory output, Memory stash, Memory scratch, const Backend& backend = cpu_backend(),
               const SliceForward& slice = {}) const noexcept;

  /// The arrays of B, or with `parameter_gradient` of BW.
  struct Backward {
    ConstParameters parameters;
    ConstMemory stash;
    /// A rows x output_columns matrix from each succeeding stage, which are summed. A sink has none.
    std::span<const ConstMemory> output_gradients;
    /// Of a sink: the weight of the micro-batch's mean loss in the objective.
    float loss_scale = 1;
    /// A matrix for each input, or one for all of them if the stage adds its inputs; none for a source.
    std::span<const Memory> input_gradients;
    /// Gets the gradients that W reads. Empty for BW, which runs W at once.
    Memory gradient_stash = {};
    ParameterGradients parameter_gradient = {};
    Memory scratch;
    /// If given: B searches the gradients for W for numbers that are not finite, layer by layer, while caches
    /// have them. It sets this float to 1 if there are any. In memory that the backend's device can write to
    /// (Backend::find_nonfinite). BW keeps no gradients for W and searches nothing.
    float* found = nullptr;
    SliceBackward slice = {};
  };

  /// B or BW.
  void backward(const Backward& pass, const Backend& backend = cpu_backend()) const noexcept;

  /// W: adds to `parameter_gradient`.
  void backward_weights(ConstMemory stash, ConstMemory gradient_stash, ParameterGradients parameter_gradient,
                        Memory scratch, const Backend& backend = cpu_backend()) const noexcept;

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  /// The places of an op's arrays: offsets and sizes in words, or in numbers for parameters.
  struct OpLayout {
    std::size_t parameters = 0, parameter_size = 0;  ///< in the stage's own parameters, or in the set
    std::size_t set = none;                          ///< the set that the layer shares, in shared()
    std::size_t stash = 0, stash_size = 0;           ///< in the stage's stash
    std::size_t gradient = 0;     ///< place of the output's gradient in the gradient stash, if W needs it
    std::size_t columns = 0;      ///< number of columns of the op's output
    std::size_t partner = 0;      ///< index of the op at the other end of the residual connection
    std::size_t residual = 0;     ///< place of the residual connection's part in Scratch::residuals
    std::size_t keys_values = 0;  ///< place of the layer's part of the slice's keys and values
    std::size_t earlier_gradient = 0;  ///< the same of the gradient of the slices before
    std::size_t handed_back = 0;       ///< and of the gradient that the slice after hands back
  };

  /// Activation i lies between two ops, 0 <= i <= number of ops: ops_[i - 1] writes it and ops_[i] reads it;
  /// activation 0 is the stage's input. So that nothing is copied, an op writes its output where it is needed
  /// later: in the stash, or in the part of a residual connection. Gradients are written likewise. The
  /// members are offsets of these places, in words; `none` where the activation or its gradient is not needed
  /// there. A residual_begin passes its activation on and writes none. In the backward pass a residual_end
  /// passes its gradient on.
  struct Activation {
    std::size_t size = 0;         ///< words
    std::size_t stash = none;     ///< in the stash, when the layer that reads it keeps its input
    std::size_t residual = none;  ///< in Scratch::residuals, when a residual connection begins here
    std::size_t gradient = none;  ///< its gradient in the gradient stash, when W of its writer needs it
    /// Offset of the gradient in Scratch::residuals, if a residual connection ends here.
    std::size_t gradient_residual = none;
  };

  [[nodiscard]] std::size_t matrix_size(Precision precision, std::size_t columns) const {
    return words(precision, rows_ * columns);
  }
  [[nodiscard]] ConstMemory weights_of(const OpLayout& layout, ConstParameters parameters) const;

  static FloatView gradient_of(const OpLayout& layout, ParameterGradients gradients);
  /// W of ops_[op], a layer with parameters. `dy`: the gradient of its output.
  void add_weight_gradient(std::size_t op, ConstMemory stash, ConstMemory dy, ParameterGradients gradients,
                           FloatView scratch, const Backend& backend) const noexcept;

  // Parts of the constructor; they throw as it does. `columns`: number of columns of the activation before
  // the op, which add_layer() replaces by the number after the op.
  void add_layer(std::size_t op, std::size_t& columns, OpLayout& layout);
  void place_parameters(const StageOp& op, OpLayout& layout);
  void add_loss(std::size_t columns);
  void place_activations();

  [[nodiscard]] bool is(StageOp::Kind kind, std::size_t op) const {
    return op < ops_.size() && ops_[op].kind == kind;
  }
  /// The keys and values of a layer in the slices before, and perhaps in its own.
  class LayerSlices;

  /// Returns the index of the activation that ops_[op] reads. Each residual_begin directly before ops_[op]
  /// passes it on, so it is the activation before the first of them.
  [[nodiscard]] std::size_t activation_read(std::size_t op) const;
  /// Returns the index of the activation whose gradient is the gradient of ops_[op]'s output. In the backward
  /// pass each residual_end directly after ops_[op] passes the gradient on, so it is the activation after the
  /// last of them.
  [[nodiscard]] std::size_t activation_given(std::size_t op) const;

  /// The parts of a pass's scratch.
  struct Scratch {
    std::array<Memory, 2> buffers;  ///< for activations or gradients in turn
    Memory residuals;               ///< of the open residual connections
    Memory layer_stash;             ///< for the stash of one layer at a time, where F keeps no stash
    FloatView layer;                ///< the scratch of layers
    /// Returns the buffer in which `than` is not.
    [[nodiscard]] Memory other(ConstMemory than) const {
      return buffers[than.data() == buffers[0].data() ? 1 : 0];
    }
  };
  [[nodiscard]] Scratch divide(Memory scratch, bool with_layer_stash) const;

  std::vector<StageOp> ops_;
  std::vector<OpLayout> layouts_;        ///< one per op
  std::vector<Activation> activations_;  ///< one more than ops
  std::vector<SharedParameters> shared_;
  std::size_t rows_;
  std::vector<std::size_t> input_columns_;
  std::shared_ptr<const Loss> loss_;
  Precision precision_;
  Precision output_precision_;
  Join join_;
  std::size_t target_columns_ = 0;
  bool reads_ids_ = false;
  std::size_t parameter_size_ = 0;
  std::size_t stash_size_ = 0;
  std::size_t gradient_stash_size_ = 0;
  std::size_t keys_values_size_ = 0;
  std::size_t earlier_size_ = 0;      ///< of the slices before
  std::size_t handed_back_size_ = 0;  ///< of the slices before and its own
  std::size_t largest_stash_ = 0;     ///< of a single layer or the loss
  // Words of the parts of Scratch: one buffer, residuals, layer.
  std::size_t buffer_size_ = 0;
  std::size_t residual_size_ = 0;
  std::array<std::size_t, 2> layer_scratch_ = {};  ///< [0] on a CPU, [1] on a GPU
  std::size_t joined_columns_ = 0;                 ///< of the matrix that the first op reads
  std::size_t first_with_parameters_ = 0;  ///< the first op with parameters; ops_.size() when none has any
};

}  // namespace starpipe::model
