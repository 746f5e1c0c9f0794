// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/layer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "starpipe/model/layer_registries.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/registration.hpp"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model {
namespace {

std::invalid_argument bad_option(const LayerSpec& spec, std::string_view key, const char* problem) {
  return std::invalid_argument(fmt::format("{} layer {}: option {} {}", spec.kind, spec.name, key, problem));
}

// Matrix products take their numbers of rows and columns as int.
void require_products(std::string_view kind, std::string_view name, std::size_t rows, std::size_t columns) {
  constexpr std::size_t most = std::numeric_limits<int>::max();
  if (rows <= most && columns <= most) return;
  throw InputError(
      fmt::format("{} layer {}: {} rows and {} columns, matrix products take at most {} of each "
                  "(training.microbatch_size, and the sizes of model)",
                  kind, name, rows, columns, most));
}

}  // namespace

std::size_t Parameter::size() const {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

std::string Parameter::label() const { return piece ? name + piece.text() : name; }

void check_options(const LayerSpec& spec, std::initializer_list<std::string_view> required,
                   std::initializer_list<std::string_view> optional) {
  const auto in = [](std::initializer_list<std::string_view> list, std::string_view key) {
    return std::find(list.begin(), list.end(), key) != list.end();
  };
  for (const auto& [key, value] : spec.options) {
    if (!in(required, key) && !in(optional, key)) throw bad_option(spec, key, "is unknown");
  }
  if (!spec.parts.empty() && !in(optional, "parts")) throw bad_option(spec, "parts", "is unknown");
  for (const std::string_view key : required) {
    if (!spec.options.contains(std::string(key))) throw bad_option(spec, key, "is missing");
  }
}

double option(const LayerSpec& spec, std::string_view key, double fallback) {
  const auto found = spec.options.find(std::string(key));
  return found == spec.options.end() ? fallback : found->second;
}

std::size_t size_option(const LayerSpec& spec, std::string_view key, std::size_t fallback) {
  const double value = option(spec, key, static_cast<double>(fallback));
  if (!(value >= 1 && value <= 9e15) || value != std::floor(value)) {
    throw bad_option(spec, key, "must be a positive whole number");
  }
  return static_cast<std::size_t>(value);
}

std::size_t Layer::scratch_words(bool on_gpu) const {
  if (on_gpu) return cuda_ != nullptr ? cuda_->scratch_size() : 0;
  if (precision_ != Precision::bf16) return scratch_size();
  // In bf16 the fp32 passes run on arrays of floats, which are in the scratch too: cpu_backend().
  return scratch_size() + parameter_size_ + stash_size() + rows() * (input_columns() + output_columns());
}

std::size_t Loss::scratch_words(bool on_gpu) const {
  if (on_gpu) return rows();
  return precision_ == Precision::bf16 ? stash_size() + rows() * input_columns() : 0;
}

bool register_layer(std::string kind, LayerFactory factory) {
  return detail::add_factory("layer", std::move(kind), std::move(factory));
}
bool register_loss(std::string kind, LossFactory factory) {
  return detail::add_factory("loss", std::move(kind), std::move(factory));
}

std::unique_ptr<Layer> make_layer(const LayerSpec& spec, Precision precision) {
  require_registrations();
  const auto* factory = detail::find_factory<LayerFactory>(spec.kind);
  if (factory == nullptr) {
    throw std::invalid_argument("layer " + spec.name + ": unknown kind " + spec.kind);
  }
  if (spec.rows == 0 || spec.columns == 0) {
    throw std::invalid_argument(spec.kind + " layer " + spec.name + ": rows and columns must be positive");
  }
  require_products(spec.kind, spec.name, spec.rows, spec.columns);
  auto layer = (*factory)(spec);
  require_products(spec.kind, spec.name, layer->rows(), layer->output_columns());
  layer->precision_ = precision;
  for (const Parameter& parameter : layer->parameters()) layer->parameter_size_ += parameter.size();
  if (const auto* make_cuda = detail::find_factory<CudaLayerFactory>(spec.kind))
    layer->cuda_ = (*make_cuda)(spec, precision);
  return layer;
}

std::unique_ptr<Loss> make_loss(std::string_view kind, std::size_t rows, std::size_t columns,
                                Precision precision) {
  require_registrations();
  const auto* factory = detail::find_factory<LossFactory>(kind);
  if (factory == nullptr) throw std::invalid_argument("unknown loss kind " + std::string(kind));
  if (rows == 0 || columns == 0) {
    throw std::invalid_argument(std::string(kind) + " loss: rows and columns must be positive");
  }
  auto loss = (*factory)(rows, columns);
  loss->precision_ = precision;
  if (const auto* make_cuda = detail::find_factory<CudaLossFactory>(kind))
    loss->cuda_ = (*make_cuda)(rows, columns, precision);
  return loss;
}

std::vector<std::string> layer_kinds() { return detail::registered_kinds<LayerFactory>(); }
std::vector<std::string> loss_kinds() { return detail::registered_kinds<LossFactory>(); }

}  // namespace starpipe::model
