// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/model/precision.hpp"

namespace starpipe::model {

class CudaLayer;  // starpipe/model/cuda_layer.hpp
class CudaLoss;

/// One named tensor of a layer's parameters, row-major fp32.
struct Parameter {
  std::string name;                ///< full name: "transformer.h.0.attn.c_attn.weight"
  std::vector<std::size_t> shape;  ///< as in the saved file
  /// Start value: normal with this deviation and mean; deviation 0 is the constant `mean`.
  double deviation = 0;
  double mean = 0;

  [[nodiscard]] std::size_t size() const;
};

/// What a network asks of a layer.
struct LayerSpec {
  std::string kind;         ///< name in the registry: "linear"
  std::string name;         ///< prefix of its parameters' names
  std::size_t rows = 0;     ///< rows of one micro-batch: sequences * context, or samples
  std::size_t columns = 0;  ///< columns of its input
  /// The layer's own numbers ("outputs", "heads", ...). Unknown or missing keys throw
  /// std::invalid_argument: a bug in the network, not in the user's input.
  std::map<std::string, double> options;
};

/// For the constructors of layers: checks the keys of `spec.options`. Throws std::invalid_argument naming
/// the layer and the key when one is in neither list, or a required one is missing.
void check_options(const LayerSpec& spec, std::initializer_list<std::string_view> required,
                   std::initializer_list<std::string_view> optional = {});
/// The option's value, or `fallback` when it is not there.
double option(const LayerSpec& spec, std::string_view key, double fallback);
/// An option that counts something. Throws std::invalid_argument unless it is a positive whole number.
std::size_t size_option(const LayerSpec& spec, std::string_view key);

/// One operator of the network with its F, B and W passes.
///
/// Inputs and outputs are row-major matrices of `rows()` rows; token ids travel as floats (exact up to 2^24).
/// The passes here are those of a CPU, on fp32 whatever the layer's precision: cpu_backend() converts. A
/// layer is immutable after construction and its passes are thread-safe: all state is in the spans, which
/// never overlap but for keeps_input(). Passes do not allocate and do not throw.
class Layer {
 public:
  virtual ~Layer() = default;

  [[nodiscard]] virtual std::size_t rows() const = 0;
  [[nodiscard]] virtual std::size_t input_columns() const = 0;
  [[nodiscard]] virtual std::size_t output_columns() const = 0;
  /// In the order in which they lie in the parameter span. Empty for layers without.
  [[nodiscard]] virtual std::vector<Parameter> parameters() const { return {}; }
  /// Numbers that F keeps for B and W.
  [[nodiscard]] virtual std::size_t stash_size() const = 0;
  /// How many of them, the last ones, are floats in any precision: statistics of rows, token ids.
  [[nodiscard]] virtual std::size_t statistics_size() const { return 0; }
  /// Whether its stash begins with its input, as it is. `input` of F may then be the stash's beginning: what
  /// writes the input writes it there, and nothing is copied.
  [[nodiscard]] virtual bool keeps_input() const { return false; }
  /// Whether its input is token ids, which are floats in any precision.
  [[nodiscard]] virtual bool reads_ids() const { return false; }
  /// Floats of working memory that any of the passes needs.
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
  /// How many numbers its parameters are.
  [[nodiscard]] std::size_t parameter_size() const { return parameter_size_; }
  /// Words of the stash in the precision: an array of elements, then one of statistics.
  [[nodiscard]] std::size_t stash_words() const {
    return words(precision_, stash_size() - statistics_size(), statistics_size());
  }
  /// Words of working memory that any of the passes needs on the device.
  [[nodiscard]] std::size_t scratch_words(bool on_gpu) const;
  /// Its passes on a GPU; null when there are none: a program without CUDA, or a shape that they cannot do.
  [[nodiscard]] const std::shared_ptr<const CudaLayer>& cuda() const { return cuda_; }

 private:
  friend std::unique_ptr<Layer> make_layer(const LayerSpec& spec, Precision precision);
  Precision precision_ = Precision::fp32;
  std::size_t parameter_size_ = 0;
  std::shared_ptr<const CudaLayer> cuda_;
};

/// The loss at the end of the network: mean over the rows of a micro-batch, and for regression over the
/// columns too (torch.nn.CrossEntropyLoss, torch.nn.MSELoss). Thread-safe, as layers are.
class Loss {
 public:
  virtual ~Loss() = default;

  [[nodiscard]] virtual std::size_t rows() const = 0;
  [[nodiscard]] virtual std::size_t input_columns() const = 0;
  /// Floats per row of the target: 1 for a token id, the output's columns for regression.
  [[nodiscard]] virtual std::size_t target_columns() const = 0;
  [[nodiscard]] virtual std::size_t stash_size() const = 0;
  /// Returns the mean loss of the rows.
  virtual float forward(std::span<const float> input, std::span<const float> target,
                        std::span<float> stash) const noexcept = 0;
  /// input_gradient = scale * d(mean loss)/d(input).
  virtual void backward_input(std::span<const float> stash, float scale,
                              std::span<float> input_gradient) const noexcept = 0;

  // As of layers. The stash has no statistics.
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

/// Adds a kind; call from a file-scope initialiser. Returns true; throws std::logic_error when taken.
bool register_layer(std::string kind, LayerFactory factory);
bool register_loss(std::string kind, LossFactory factory);

/// Throws std::invalid_argument for an unknown kind, or what the kind cannot work with.
std::unique_ptr<Layer> make_layer(const LayerSpec& spec, Precision precision = Precision::fp32);
std::unique_ptr<Loss> make_loss(std::string_view kind, std::size_t rows, std::size_t columns,
                                Precision precision = Precision::fp32);
std::vector<std::string> layer_kinds();
std::vector<std::string> loss_kinds();

}  // namespace starpipe::model
