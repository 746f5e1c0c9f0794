// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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

/// A part of a tensor of the saved file: a shard has some rows of a matrix, or some of its columns. The
/// tensor is row-major; a vector is a matrix of one row.
struct Piece {
  /// From `first`, `count` rows or columns.
  struct Range {
    std::size_t first = 0;
    std::size_t count = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };

  std::vector<std::size_t> whole;  ///< shape of the tensor, of one or two extents
  Range rows;
  std::vector<Range> columns;  ///< in the order in which the piece has them

  /// Whether it is a part of a tensor, and not the empty piece of a parameter that is a tensor of its own.
  explicit operator bool() const { return !whole.empty(); }

  /// How many numbers the tensor has.
  [[nodiscard]] std::size_t whole_size() const;
  /// The piece itself has as many extents as the tensor.
  [[nodiscard]] std::vector<std::size_t> shape() const;
  /// Its rows and columns, from the first to the one behind the last: "[0:16,0:32]", and of a vector
  /// "[0:8+16:24]".
  [[nodiscard]] std::string text() const;

  /// Copies the piece out of the tensor, or into it. `tensor` has the size of `whole`, `piece` that of
  /// shape().
  void take(std::span<const float> tensor, std::span<float> piece) const;
  void take(std::span<const double> tensor, std::span<double> piece) const;
  void put(std::span<const float> piece, std::span<float> tensor) const;

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// The piece with this text() of a tensor. `whole`: the tensor's shape. Nothing when no piece of it has the
/// text.
std::optional<Piece> piece_from_text(std::string_view text, std::vector<std::size_t> whole);

/// Share `shard` of `shards` of `size` things: sizes of shares differ by one at most.
Piece::Range share_of(std::size_t size, std::size_t shard, std::size_t shards);

/// The piece with share `shard` of `shards` of the rows of a matrix with this shape.
Piece rows_piece(std::size_t rows, std::size_t columns, std::size_t shard, std::size_t shards);
/// The piece with 1 / `shards` of the columns, the `shard`-th one. The matrix is `blocks` blocks side by
/// side, and the piece has 1 / `shards` of the columns of each block. An attention layer's queries, keys and
/// values are three such blocks.
Piece columns_piece(std::size_t rows, std::size_t columns, std::size_t shard, std::size_t shards,
                    std::size_t blocks = 1);
/// The same of a vector.
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
  /// Of a shard: which part of the tensor of this name it is. Empty: the whole tensor.
  Piece piece = {};

  [[nodiscard]] std::size_t size() const;
  /// The shape of the tensor, and not of a piece of it.
  [[nodiscard]] const std::vector<std::size_t>& whole_shape() const { return piece ? piece.whole : shape; }
  /// The name, and of a piece which part of the tensor it is: "h.0.mlp.c_fc.bias[0:64]". No two parameters
  /// of a network have the same label.
  [[nodiscard]] std::string label() const;
};

/// The description by which a network asks make_layer() for a layer.
struct LayerSpec {
  std::string kind;         ///< name in the registry: "linear"
  std::string name;         ///< prefix of its parameters' names
  std::size_t rows = 0;     ///< rows of one micro-batch: sequences * context, or samples
  std::size_t columns = 0;  ///< columns of its input
  /// The numbers of the layer's kind ("outputs", "heads", ...). Unknown or missing keys make make_layer()
  /// throw std::invalid_argument: they are a bug in the network, not in the user's input.
  std::map<std::string, double> options;
  /// Of a linear layer whose weight is several tensors of the saved file: each tensor's name, after the
  /// layer's, and its share of the outputs, in order.
  std::vector<std::pair<std::string, std::size_t>> parts = {};
};

/// Checks the keys of `spec.options`, for the constructors of layers. Throws std::invalid_argument with the
/// layer and the key when a key is in neither list, or a required key is missing. `parts` is a key of the
/// lists too.
void check_options(const LayerSpec& spec, std::initializer_list<std::string_view> required,
                   std::initializer_list<std::string_view> optional = {});
/// The option's value, or `fallback` when the specification does not have the option.
double option(const LayerSpec& spec, std::string_view key, double fallback);
/// The value of an option that is a count, or `fallback` when the specification does not have the option.
/// Throws std::invalid_argument unless it is a positive whole number.
std::size_t size_option(const LayerSpec& spec, std::string_view key, std::size_t fallback = 0);

/// One operator of the network with its F, B and W passes.
///
/// Inputs and outputs are row-major matrices of `rows()` rows; token ids travel as floats (exact up to 2^24).
/// The passes here run on a CPU and on fp32, whatever the layer's precision: cpu_backend() converts. A layer
/// is immutable after construction and its passes are thread-safe: all state is in the spans. Spans never
/// overlap, except for the input of a layer that keeps_input(). Passes do not allocate and do not throw.
class Layer {
 public:
  virtual ~Layer() = default;

  [[nodiscard]] virtual std::size_t rows() const = 0;
  [[nodiscard]] virtual std::size_t input_columns() const = 0;
  [[nodiscard]] virtual std::size_t output_columns() const = 0;
  /// Its parameters in the order in which they lie in the parameter span; empty for a layer without
  /// parameters.
  [[nodiscard]] virtual std::vector<Parameter> parameters() const { return {}; }
  /// Numbers in the stash, which F keeps for B and W.
  [[nodiscard]] virtual std::size_t stash_size() const = 0;
  /// How many of the stash's numbers, at its end, are floats in any precision: statistics of rows, or token
  /// ids.
  [[nodiscard]] virtual std::size_t statistics_size() const { return 0; }
  /// Whether the stash begins with an unchanged copy of the input. If so, F accepts an `input` that lies at
  /// the stash's beginning already: the pass that computed it wrote it there, and nothing is copied.
  [[nodiscard]] virtual bool keeps_input() const { return false; }
  /// Whether the input is token ids, which are floats in any precision.
  [[nodiscard]] virtual bool reads_ids() const { return false; }
  /// Floats of the target in a row; 0 for a layer that reads no target. The target is the last part of the
  /// layer's statistics. It is put into the stash before F, and F leaves it there.
  [[nodiscard]] virtual std::size_t target_columns() const { return 0; }
  /// Whether the output and its gradient are floats in any precision. Such a layer is the last of its stage,
  /// and has no parameters.
  [[nodiscard]] virtual bool writes_floats() const { return false; }
  /// Floats of scratch (working memory), enough for each of the passes.
  [[nodiscard]] virtual std::size_t scratch_size() const { return 0; }
  /// Estimated floating-point operations of F for one micro-batch, to balance stages.
  [[nodiscard]] virtual double flops() const = 0;

  /// F. output[rows x output_columns] and stash are written whole.
  virtual void forward(std::span<const float> parameters, std::span<const float> input,
                       std::span<float> output, std::span<float> stash,
                       std::span<float> scratch) const noexcept = 0;

  /// B: input_gradient[rows x input_columns] from output_gradient; no weight-gradient work.
  virtual void backward_input(std::span<const float> parameters, std::span<const float> stash,
                              std::span<const float> output_gradient, std::span<float> input_gradient,
                              std::span<float> scratch) const noexcept = 0;

  /// W: adds to parameter_gradient (laid out as the parameters). Layers without parameters: no effect.
  virtual void backward_weights(std::span<const float> /*stash*/, std::span<const float> /*output_gradient*/,
                                std::span<float> /*parameter_gradient*/,
                                std::span<float> /*scratch*/) const noexcept {}

  [[nodiscard]] Precision precision() const { return precision_; }
  /// How many numbers all parameters have together.
  [[nodiscard]] std::size_t parameter_size() const { return parameter_size_; }
  /// Words of 4 bytes of the stash in the layer's precision: an array of elements, then one of statistics.
  [[nodiscard]] std::size_t stash_words() const {
    return words(precision_, stash_size() - statistics_size(), statistics_size());
  }
  /// How many floats the target of a micro-batch has, and the word of the stash at which it begins.
  [[nodiscard]] std::size_t target_size() const { return rows() * target_columns(); }
  [[nodiscard]] std::size_t target_offset() const {
    return words(precision_, stash_size() - statistics_size()) + statistics_size() - target_size();
  }
  /// Words of scratch on a GPU or a CPU in the layer's precision, enough for each of the passes.
  [[nodiscard]] std::size_t scratch_words(bool on_gpu) const;
  /// The layer's CUDA implementation; null in a program without CUDA, and for a shape that the kernels cannot
  /// work with.
  [[nodiscard]] const std::shared_ptr<const CudaLayer>& cuda() const { return cuda_; }

 private:
  friend std::unique_ptr<Layer> make_layer(const LayerSpec& spec, Precision precision);
  Precision precision_ = Precision::fp32;
  std::size_t parameter_size_ = 0;
  std::shared_ptr<const CudaLayer> cuda_;
};

/// The loss at the end of the network: the mean over the rows of a micro-batch, and for regression over the
/// columns too (torch.nn.CrossEntropyLoss, torch.nn.MSELoss). Thread-safe, as layers are.
class Loss {
 public:
  virtual ~Loss() = default;

  [[nodiscard]] virtual std::size_t rows() const = 0;
  [[nodiscard]] virtual std::size_t input_columns() const = 0;
  /// Floats per row of the target: 1 for a token id, the output's columns for regression, 0 for a loss that
  /// reads none.
  [[nodiscard]] virtual std::size_t target_columns() const = 0;
  [[nodiscard]] virtual std::size_t stash_size() const = 0;
  /// Returns the mean loss of the rows.
  virtual float forward(std::span<const float> input, std::span<const float> target,
                        std::span<float> stash) const noexcept = 0;
  /// input_gradient = scale * d(mean loss)/d(input).
  virtual void backward_input(std::span<const float> stash, float scale,
                              std::span<float> input_gradient) const noexcept = 0;

  // As in Layer. The stash has no statistics.
  [[nodiscard]] Precision precision() const { return precision_; }
  [[nodiscard]] std::size_t stash_words() const { return words(precision_, stash_size()); }
  [[nodiscard]] std::size_t scratch_words(bool on_gpu) const;
  [[nodiscard]] const std::shared_ptr<const CudaLoss>& cuda() const { return cuda_; }

 private:
  friend std::unique_ptr<Loss> make_loss(std::string_view kind, std::size_t rows, std::size_t columns,
                                         Precision precision);
  Precision precision_ = Precision::fp32;
  std::shared_ptr<const CudaLoss> cuda_;
};

using LayerFactory = std::function<std::unique_ptr<Layer>(const LayerSpec&)>;
using LossFactory = std::function<std::unique_ptr<Loss>(std::size_t rows, std::size_t columns)>;

/// Registers a kind of layer or loss. To call from a file-scope initialiser. Returns whether it was added:
/// when the kind is there already, the error is kept (starpipe/base/registration.hpp), and `make_layer` and
/// `make_loss` throw it.
bool register_layer(std::string kind, LayerFactory factory);
bool register_loss(std::string kind, LossFactory factory);

/// Make a layer or a loss. Throw std::invalid_argument for an unknown kind, and for shapes or options that
/// the kind cannot work with.
std::unique_ptr<Layer> make_layer(const LayerSpec& spec, Precision precision = Precision::fp32);
std::unique_ptr<Loss> make_loss(std::string_view kind, std::size_t rows, std::size_t columns,
                                Precision precision = Precision::fp32);
/// The registered kinds, sorted by name.
std::vector<std::string> layer_kinds();
std::vector<std::string> loss_kinds();

}  // namespace starpipe::model
