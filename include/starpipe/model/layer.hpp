// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "starpipe/model/memory_view.hpp"

namespace starpipe::model {

/// A part of a row-major tensor of the saved file: a shard has some rows of a matrix, or some of its columns.
/// A vector is a matrix of one row.
struct Piece {
  /// Rows or columns [first, first + count).
  struct Range {
    std::size_t first = 0;
    std::size_t count = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };

  std::vector<std::size_t> whole;  ///< shape of the tensor, of one or two extents
  Range rows;
  std::vector<Range> columns;  ///< in the order in which the piece has them

  /// True for a part of a tensor, false for the empty piece of a parameter that is a tensor of its own.
  explicit operator bool() const { return !whole.empty(); }

  /// Returns the number of elements of the tensor.
  [[nodiscard]] std::size_t whole_size() const;
  /// Returns the shape of the piece, which has as many extents as the tensor.
  [[nodiscard]] std::vector<std::size_t> shape() const;
  /// Returns the half-open ranges of rows and columns: "[0:16,0:32]" of a matrix, "[0:8+16:24]" of a vector.
  [[nodiscard]] std::string text() const;

  /// Calls f(offset in the tensor, offset in the piece, count) for each run of neighbouring elements. `size`:
  /// of the tensor; the empty piece is the whole tensor.
  template <class Function>
  void for_each_run(std::size_t size, Function&& f) const {
    if (whole.empty()) return f(std::size_t{0}, std::size_t{0}, size);
    std::size_t at = 0;
    for (std::size_t row = rows.first; row < rows.first + rows.count; ++row) {
      for (const auto& [first, count] : columns) {
        f(row * whole.back() + first, at, count);
        at += count;
      }
    }
  }
  /// Copies the piece out of the tensor, or into it. The empty piece is the whole tensor.
  void take(ConstFloatView tensor, FloatView piece) const;
  void take(std::span<const double> tensor, std::span<double> piece) const;
  void put(ConstFloatView piece, FloatView tensor) const;

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// Returns the piece with this text() of a tensor of shape `whole`; nullopt if it has no such piece.
std::optional<Piece> piece_from_text(std::string_view text, std::vector<std::size_t> whole);

/// Returns share `shard` of `shards` of [0, size). Sizes of shares differ by at most one.
Piece::Range share_of(std::size_t size, std::size_t shard, std::size_t shards);

/// Returns share `shard` of `shards` of the rows of a matrix.
Piece rows_piece(std::size_t rows, std::size_t columns, std::size_t shard, std::size_t shards);
/// Returns share `shard` of `shards` of the columns of each of the `blocks` blocks that stand side by side in
/// a matrix. An attention layer's queries, keys and values are three such blocks.
Piece columns_piece(std::size_t rows, std::size_t columns, std::size_t shard, std::size_t shards,
                    std::size_t blocks = 1);
/// Does the same for a vector.
Piece vector_piece(std::size_t size, std::size_t shard, std::size_t shards, std::size_t blocks = 1);

class CudaLayer;  // starpipe/model/cuda_layer.hpp
class CudaLoss;

/// One named tensor of a layer's parameters, row-major fp32.
struct Parameter {
  std::string name;                ///< full name: "transformer.h.0.attn.c_attn.weight"
  std::vector<std::size_t> shape;  ///< as in the saved file, or of the piece
  /// Start value: normal with this deviation and mean; deviation 0 is the constant `mean`.
  double deviation = 0;
  double mean = 0;
  /// The part of the tensor of this name that a shard has. Empty: the whole tensor.
  Piece piece = {};

  [[nodiscard]] std::size_t size() const;
  /// Returns the shape and the size of the whole tensor.
  [[nodiscard]] const std::vector<std::size_t>& whole_shape() const { return piece ? piece.whole : shape; }
  [[nodiscard]] std::size_t whole_size() const { return piece ? piece.whole_size() : size(); }
  /// Returns the name, followed by the piece's text(): "h.0.mlp.c_fc.bias[0:64]". Unique in a network.
  [[nodiscard]] std::string label() const;
};

/// Describes a layer to make_layer().
struct LayerSpec {
  std::string kind;         ///< name in the registry: "linear"
  std::string name;         ///< prefix of its parameters' names
  std::size_t rows = 0;     ///< rows of one micro-batch: sequences * context, or samples
  std::size_t columns = 0;  ///< columns of its input
  /// The numbers of the layer's kind ("outputs", "heads", ...). Unknown or missing keys make make_layer()
  /// throw std::invalid_argument: they are a bug in the network, not in the user's input.
  std::map<std::string, double> options;
  /// For a linear layer whose weight is several tensors of the saved file: each tensor's name, after the
  /// layer's, and its share of the outputs, in order.
  std::vector<std::pair<std::string, std::size_t>> parts = {};
};

// For the constructors of layers. Exceptions name the layer.

/// Throws std::invalid_argument if a key of `spec.options` is in neither list, or a required key is missing.
/// `parts` counts as a key.
void check_options(const LayerSpec& spec, std::initializer_list<std::string_view> required,
                   std::initializer_list<std::string_view> optional = {});
/// Throws std::invalid_argument with the problem unless the layer `fits` its specification.
void check_fit(const LayerSpec& spec, bool fits, std::string_view problem);
/// The largest number of slices of a sequence.
inline constexpr std::size_t max_slices = 256;

/// The rows of a layer in each sequence. Options: context, the tokens of a sequence. A slice of it has option
/// positions, its number of tokens, and first_position, the number of tokens before it.
struct SequenceRows {
  std::size_t context = 0;
  std::size_t first = 0;  ///< position of the first row
  std::size_t count = 0;  ///< rows of a sequence
  bool is_slice = false;

  /// Returns the position of a row of the layer's matrices.
  [[nodiscard]] std::size_t position(std::size_t row) const { return first + row % count; }
};
/// Throws std::invalid_argument unless the rows are whole sequences, or whole slices of them.
SequenceRows sequence_rows(const LayerSpec& spec);

/// Returns an option's value, or `fallback` if the specification does not have the option.
double option(const LayerSpec& spec, std::string_view key, double fallback);
/// Does the same for an option that is a count. Throws std::invalid_argument unless the result is a positive
/// whole number.
std::size_t size_option(const LayerSpec& spec, std::string_view key, std::size_t fallback = 0);

/// The arrays of a layer's passes F, B and W: `View` is a span of floats on a CPU, or memory of a device. The
/// gradient of parameters, which is laid out as the parameters, and the scratch (working memory) are floats.
/// Slices of a sequence share keys and values (Layer::keys_values_size). `keys_values` has those of all
/// slices before, in order; in B also the layer's own, the last. These views have the numbers alone, without
/// the room that words() adds in bf16.
template <class ConstView, class View>
struct Passes {
  struct Forward {
    ConstView parameters;
    ConstView input;
    View output;
    View stash;
    FloatView scratch;
    std::span<const ConstView> keys_values = {};
    View own_keys_values = {};  ///< F writes it
  };
  struct Backward {
    ConstView parameters;
    ConstView stash;
    ConstView output_gradient;
    View input_gradient;
    FloatView scratch;
    std::span<const ConstView> keys_values = {};
    /// Holds the gradients of all `keys_values`, one array after the other: the sums over all later slices.
    /// Empty in the last slice.
    ConstFloatView keys_values_gradient = {};
    /// B writes the gradients for the slices before: those of `keys_values_gradient` plus its own part. Empty
    /// in the first slice.
    FloatView earlier_gradient = {};
  };
  struct Weights {
    ConstView stash;
    ConstView output_gradient;
    FloatView parameter_gradient;
    FloatView scratch;
  };
};
using DevicePasses = Passes<ConstMemory, Memory>;

/// One operator of the network with its F, B and W passes.
///
/// Inputs and outputs are row-major matrices of `rows()` rows; token ids travel as floats (exact up to 2^24).
/// The passes here run on a CPU and on fp32, whatever the layer's precision: cpu_backend() converts, unless
/// the layer also has passes on bf16. A layer is immutable after construction and its passes are thread-safe:
/// all state is in the spans. Spans never overlap, except for the input of a layer that keeps_input(). Passes
/// do not throw, and do not allocate; the library of matrix products may, for the time of a product.
class Layer : public Passes<ConstFloatView, FloatView> {
 public:
  explicit Layer(const LayerSpec& spec) : name_(spec.name), rows_(spec.rows), columns_(spec.columns) {}
  virtual ~Layer() = default;

  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] std::size_t input_columns() const { return columns_; }
  /// Returns as many columns as the input has, unless a layer overrides it.
  [[nodiscard]] virtual std::size_t output_columns() const { return columns_; }
  /// Returns the parameters in the order in which they lie in the parameter span.
  [[nodiscard]] virtual std::vector<Parameter> parameters() const { return {}; }
  /// Returns how many numbers F keeps for B and W: the statistics, and the input if keeps_input(). A layer
  /// that keeps more overrides it.
  [[nodiscard]] virtual std::size_t stash_size() const {
    return (keeps_input() ? rows_ * columns_ : 0) + statistics_size();
  }
  /// Returns how many numbers at the stash's end are floats in any precision: statistics of rows, or token
  /// ids.
  [[nodiscard]] virtual std::size_t statistics_size() const { return 0; }
  /// True if the stash begins with an unchanged copy of the input. F then also accepts an `input` that lies
  /// at the stash's beginning, where the pass before wrote it, and copies nothing.
  [[nodiscard]] virtual bool keeps_input() const { return false; }
  /// True if the input is token ids, which are floats in any precision.
  [[nodiscard]] virtual bool reads_ids() const { return false; }
  /// Returns the number of floats per row of the target; 0 for a layer that reads no target. The target is
  /// the last part of the layer's statistics. It is put into the stash before F, and F leaves it there.
  [[nodiscard]] virtual std::size_t target_columns() const { return 0; }
  /// True if the output and its gradient are floats in any precision. Such a layer is the last of its stage,
  /// and has no parameters.
  [[nodiscard]] virtual bool writes_floats() const { return false; }
  /// Returns how many numbers the layers of later slices of the same sequences read of this one; 0 for a
  /// layer that works on each row alone, or on whole sequences.
  [[nodiscard]] virtual std::size_t keys_values_size() const { return 0; }
  /// Returns the same for all slices before this one together.
  [[nodiscard]] virtual std::size_t earlier_keys_values_size() const { return 0; }
  /// Returns the number of floats of scratch, enough for each of the passes.
  [[nodiscard]] virtual std::size_t scratch_size() const { return 0; }
  /// Returns the estimated floating-point operations of F for one micro-batch, to balance stages.
  [[nodiscard]] virtual double flops() const = 0;

  /// F: writes output[rows x output_columns] and the stash whole.
  virtual void forward(const Forward& pass) const noexcept = 0;
  /// B: writes input_gradient[rows x input_columns].
  virtual void backward_input(const Backward& pass) const noexcept = 0;
  /// W: adds to parameter_gradient. Has no effect without parameters.
  virtual void backward_weights(const Weights& /*pass*/) const noexcept {}

  // The same passes on arrays in bf16, as in Backend, for a layer that needs no copies of them as floats. A
  // layer with prepare_bf16() overrides F and B, and W if it has parameters.
  virtual void forward_bf16(const DevicePasses::Forward& /*pass*/) const noexcept { std::terminate(); }
  virtual void backward_input_bf16(const DevicePasses::Backward& /*pass*/) const noexcept {
    std::terminate();
  }
  virtual void backward_weights_bf16(const DevicePasses::Weights& /*pass*/) const noexcept {
    if (parameter_size_ > 0) std::terminate();
  }
  /// Returns the floats of scratch of the passes on bf16; nullopt if the layer has no such passes, or is not
  /// in bf16.
  [[nodiscard]] const std::optional<std::size_t>& bf16_scratch_size() const { return bf16_scratch_size_; }

  [[nodiscard]] Precision precision() const { return precision_; }
  /// Returns the number of elements of all parameters together.
  [[nodiscard]] std::size_t parameter_size() const { return parameter_size_; }
  /// Returns the size of the stash in words of 4 bytes: an array of elements in the layer's precision, then
  /// an array of statistics.
  [[nodiscard]] std::size_t stash_words() const {
    return words(precision_, stash_size() - statistics_size(), statistics_size());
  }
  /// Returns the number of floats of the target of a micro-batch, and the word of the stash at which they
  /// begin.
  [[nodiscard]] std::size_t target_size() const { return rows() * target_columns(); }
  [[nodiscard]] std::size_t target_offset() const {
    return words(precision_, stash_size() - statistics_size()) + statistics_size() - target_size();
  }
  /// Returns the size of the scratch on a GPU or a CPU in words of 4 bytes, enough for each of the passes.
  [[nodiscard]] std::size_t scratch_words(bool on_gpu) const;
  /// Returns the layer's CUDA implementation; null in a program without CUDA, and for shapes without a
  /// kernel.
  [[nodiscard]] const std::shared_ptr<const CudaLayer>& cuda() const { return cuda_; }

 protected:
  std::string name_;
  std::size_t rows_;
  std::size_t columns_;  ///< of the input

 private:
  friend std::unique_ptr<Layer> make_layer(const LayerSpec& spec, Precision precision);
  /// Returns the floats of scratch of the passes on bf16; nullopt if the layer has none. make_layer() calls
  /// it for a layer in bf16, and keeps the result as bf16_scratch_size().
  virtual std::optional<std::size_t> prepare_bf16() { return std::nullopt; }

  Precision precision_ = Precision::fp32;
  std::optional<std::size_t> bf16_scratch_size_;
  std::size_t parameter_size_ = 0;
  std::shared_ptr<const CudaLayer> cuda_;
};

/// The arrays of a loss's passes F and B on any device.
struct LossForward {
  ConstMemory input;
  ConstFloatView target;
  Memory stash;
  FloatView mean;  ///< one float, which gets the mean loss; or empty
  FloatView scratch;
};
struct LossBackward {
  ConstMemory stash;
  float scale = 1;
  Memory input_gradient;
  FloatView scratch;
};

/// The loss at the end of the network: the mean over the rows of a micro-batch, and for regression over the
/// columns too (torch.nn.CrossEntropyLoss, torch.nn.MSELoss). Thread-safe, as layers are.
class Loss {
 public:
  Loss(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns) {}
  virtual ~Loss() = default;

  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] std::size_t input_columns() const { return columns_; }
  /// Returns the number of floats per row of the target: 1 for a token id, the output's columns for
  /// regression, 0 for a loss that reads none.
  [[nodiscard]] virtual std::size_t target_columns() const = 0;
  /// Returns how many numbers the stash has: as many as the input, unless a loss overrides it.
  [[nodiscard]] virtual std::size_t stash_size() const { return rows_ * columns_; }
  /// Returns the mean loss of the rows.
  virtual float forward(ConstFloatView input, ConstFloatView target, FloatView stash) const noexcept = 0;
  /// input_gradient = scale * d(mean loss)/d(input). The stash is this derivative, unless a loss overrides
  /// it.
  virtual void backward_input(ConstFloatView stash, float scale, FloatView input_gradient) const noexcept;

  // As in Layer. The stash has no statistics.
  [[nodiscard]] Precision precision() const { return precision_; }
  [[nodiscard]] std::size_t stash_words() const { return words(precision_, stash_size()); }
  [[nodiscard]] std::size_t scratch_words(bool on_gpu) const;
  [[nodiscard]] const std::shared_ptr<const CudaLoss>& cuda() const { return cuda_; }

 protected:
  std::size_t rows_;
  std::size_t columns_;  ///< of the input

 private:
  friend std::unique_ptr<Loss> make_loss(std::string_view kind, std::size_t rows, std::size_t columns,
                                         Precision precision);
  Precision precision_ = Precision::fp32;
  std::shared_ptr<const CudaLoss> cuda_;
};

using LayerFactory = std::function<std::unique_ptr<Layer>(const LayerSpec&)>;
using LossFactory = std::function<std::unique_ptr<Loss>(std::size_t rows, std::size_t columns)>;

/// Registers a kind of layer or loss, from a file-scope initialiser. Returns false if the kind exists: the
/// error is kept (starpipe/base/registration.hpp), and make_layer() and make_loss() throw it.
bool register_layer(std::string kind, LayerFactory factory);
bool register_loss(std::string kind, LossFactory factory);
/// Registers a class with the factory's arguments as constructor: `register_layer<Relu>("relu")`.
template <class Kind>
bool register_layer(std::string kind) {
  return register_layer(std::move(kind), [](const LayerSpec& spec) { return std::make_unique<Kind>(spec); });
}
template <class Kind>
bool register_loss(std::string kind) {
  return register_loss(std::move(kind), [](std::size_t rows, std::size_t columns) {
    return std::make_unique<Kind>(rows, columns);
  });
}

/// Make a layer or a loss. Throw std::invalid_argument for an unknown kind, and for shapes or options that
/// the kind cannot work with.
std::unique_ptr<Layer> make_layer(const LayerSpec& spec, Precision precision = Precision::fp32);
std::unique_ptr<Loss> make_loss(std::string_view kind, std::size_t rows, std::size_t columns,
                                Precision precision = Precision::fp32);
/// Returns the registered kinds, sorted by name.
std::vector<std::string> layer_kinds();
std::vector<std::string> loss_kinds();

}  // namespace starpipe::model
