// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/layer.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/registration.hpp"
#include "starpipe/model/cuda_layer.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::model {
namespace {

/// Returns the factories of all kinds, by name. Local to a function, so that registrations in other
/// translation units find them constructed.
template <class Factory>
std::map<std::string, Factory, std::less<>>& factories() {
  static std::map<std::string, Factory, std::less<>> registered;
  return registered;
}

/// Registers a factory of `things`. Returns false, and keeps an error, if the kind is registered already.
template <class Factory>
bool add_factory(std::string_view things, std::string kind, Factory factory) {
  const auto [where, added] = factories<Factory>().try_emplace(std::move(kind), std::move(factory));
  if (added)
    keep_registration({std::string(things), where->first});
  else
    keep_registration_error(fmt::format("{} kind {} is registered twice", things, where->first));
  return added;
}

/// Returns the factory of a kind, or null.
template <class Factory>
const Factory* find_factory(std::string_view kind) {
  const auto found = factories<Factory>().find(kind);
  return found == factories<Factory>().end() ? nullptr : &found->second;
}

template <class Factory>
std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories<Factory>()) names.push_back(name);
  return names;
}

std::invalid_argument bad_option(const LayerSpec& spec, std::string_view key, const char* problem) {
  return std::invalid_argument(fmt::format("{} layer {}: option {} {}", spec.kind, spec.name, key, problem));
}

// Matrix products take their numbers of rows and columns as int.
void require_products(std::string_view kind, std::string_view name, std::size_t rows, std::size_t columns) {
  constexpr std::size_t max = std::numeric_limits<int>::max();
  if (rows <= max && columns <= max) return;
  throw InputError(
      fmt::format("{} layer {}: {} rows and {} columns, matrix products take at most {} of each "
                  "(training.microbatch_size, and the sizes of model)",
                  kind, name, rows, columns, max));
}

template <class Number>
void take_numbers(const Piece& piece, std::span<const Number> tensor, std::span<Number> numbers) {
  piece.for_each_run(tensor.size(), [&](std::size_t from, std::size_t to, std::size_t count) {
    std::ranges::copy(tensor.subspan(from, count), numbers.subspan(to, count).begin());
  });
}

std::vector<Piece::Range> share_of_blocks(std::size_t columns, std::size_t shard, std::size_t shards,
                                          std::size_t blocks) {
  const std::size_t block = columns / blocks;
  const std::size_t share = block / shards;
  std::vector<Piece::Range> ranges;
  for (std::size_t b = 0; b < blocks; ++b) ranges.push_back({b * block + shard * share, share});
  return ranges;
}

std::string text_of(const Piece::Range& range) {
  return fmt::format("{}:{}", range.first, range.first + range.count);
}

/// Removes the character from the beginning of the text. Returns false if it is not there.
bool take_character(std::string_view& text, char character) {
  if (!text.starts_with(character)) return false;
  text.remove_prefix(1);
  return true;
}

/// Removes a range within `extent` from the beginning of the text.
std::optional<Piece::Range> take_range(std::string_view& text, std::size_t extent) {
  std::size_t first = 0;
  std::size_t end = 0;
  for (std::size_t* number : {&first, &end}) {
    if (number == &end && !take_character(text, ':')) return std::nullopt;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    if (error != std::errc()) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  }
  if (first >= end || end > extent) return std::nullopt;
  return Piece::Range{first, end - first};
}

}  // namespace

std::size_t Parameter::size() const { return count_of(shape); }
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

void check_fit(const LayerSpec& spec, bool fits, std::string_view problem) {
  if (!fits) throw std::invalid_argument(fmt::format("{} {}: {}", spec.kind, spec.name, problem));
}

SequenceRows sequence_rows(const LayerSpec& spec) {
  SequenceRows rows = {.context = size_option(spec, "context"),
                       .is_slice = spec.options.contains("positions")};
  rows.first = option(spec, "first_position", 0) > 0 ? size_option(spec, "first_position") : 0;
  rows.count = size_option(spec, "positions", rows.context);
  check_fit(spec, rows.first + rows.count <= rows.context, "its positions are not in the context");
  check_fit(spec, spec.rows % rows.count == 0, "rows are not whole sequences");
  return rows;
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
  if (bf16_scratch_size_) return *bf16_scratch_size_;
  // In bf16 the fp32 passes run on arrays of floats, which are in the scratch too: cpu_backend().
  return scratch_size() + parameter_size_ + stash_size() + rows() * (input_columns() + output_columns()) +
         earlier_keys_values_size() + keys_values_size();
}

std::size_t Loss::scratch_words(bool on_gpu) const {
  if (on_gpu) return rows();
  return precision_ == Precision::bf16 ? stash_size() + rows() * input_columns() : 0;
}

void Loss::backward_input(ConstFloatView stash, float scale, FloatView input_gradient) const noexcept {
  std::ranges::transform(stash, input_gradient.begin(), [scale](float x) { return scale * x; });
}

bool register_layer(std::string kind, LayerFactory factory) {
  return add_factory("layer", std::move(kind), std::move(factory));
}
bool register_loss(std::string kind, LossFactory factory) {
  return add_factory("loss", std::move(kind), std::move(factory));
}
bool register_cuda_layer(std::string kind, CudaLayerFactory factory) {
  return add_factory("CUDA layer", std::move(kind), std::move(factory));
}
bool register_cuda_loss(std::string kind, CudaLossFactory factory) {
  return add_factory("CUDA loss", std::move(kind), std::move(factory));
}

std::unique_ptr<Layer> make_layer(const LayerSpec& spec, Precision precision) {
  require_registrations();
  const auto* factory = find_factory<LayerFactory>(spec.kind);
  if (factory == nullptr) throw std::invalid_argument("layer " + spec.name + ": unknown kind " + spec.kind);
  if (spec.rows == 0 || spec.columns == 0) {
    throw std::invalid_argument(spec.kind + " layer " + spec.name + ": rows and columns must be positive");
  }
  require_products(spec.kind, spec.name, spec.rows, spec.columns);
  auto layer = (*factory)(spec);
  require_products(spec.kind, spec.name, layer->rows(), layer->output_columns());
  layer->precision_ = precision;
  if (precision == Precision::bf16) layer->bf16_scratch_size_ = layer->prepare_bf16();
  for (const Parameter& parameter : layer->parameters()) layer->parameter_size_ += parameter.size();
  if (const auto* make_cuda = find_factory<CudaLayerFactory>(spec.kind))
    layer->cuda_ = (*make_cuda)(spec, precision);
  return layer;
}

std::unique_ptr<Loss> make_loss(std::string_view kind, std::size_t rows, std::size_t columns,
                                Precision precision) {
  require_registrations();
  const auto* factory = find_factory<LossFactory>(kind);
  if (factory == nullptr) throw std::invalid_argument("unknown loss kind " + std::string(kind));
  if (rows == 0 || columns == 0) {
    throw std::invalid_argument(std::string(kind) + " loss: rows and columns must be positive");
  }
  auto loss = (*factory)(rows, columns);
  loss->precision_ = precision;
  if (const auto* make_cuda = find_factory<CudaLossFactory>(kind))
    loss->cuda_ = (*make_cuda)(rows, columns, precision);
  return loss;
}

std::vector<std::string> layer_kinds() { return kinds<LayerFactory>(); }
std::vector<std::string> loss_kinds() { return kinds<LossFactory>(); }

std::size_t Piece::whole_size() const { return count_of(whole); }

std::vector<std::size_t> Piece::shape() const {
  std::size_t width = 0;
  for (const Range& range : columns) width += range.count;
  if (whole.size() == 1) return {width};
  return {rows.count, width};
}

std::string Piece::text() const {
  std::vector<std::string> ranges;
  for (const Range& range : columns) ranges.push_back(text_of(range));
  return fmt::format("[{}{}]", whole.size() == 1 ? "" : text_of(rows) + ",", fmt::join(ranges, "+"));
}

std::optional<Piece> piece_from_text(std::string_view text, std::vector<std::size_t> whole) {
  Piece piece = {.whole = std::move(whole), .rows = {0, 1}, .columns = {}};
  if (piece.whole.empty() || piece.whole.size() > 2 || !take_character(text, '[')) return std::nullopt;
  if (piece.whole.size() == 2) {
    const auto rows = take_range(text, piece.whole.front());
    if (!rows || !take_character(text, ',')) return std::nullopt;
    piece.rows = *rows;
  }
  for (bool more = true; more; more = take_character(text, '+')) {
    const auto columns = take_range(text, piece.whole.back());
    if (!columns) return std::nullopt;
    piece.columns.push_back(*columns);
  }
  return text == "]" ? std::optional(std::move(piece)) : std::nullopt;
}

void Piece::take(ConstFloatView tensor, FloatView piece) const { take_numbers(*this, tensor, piece); }
void Piece::take(std::span<const double> tensor, std::span<double> piece) const {
  take_numbers(*this, tensor, piece);
}

void Piece::put(ConstFloatView piece, FloatView tensor) const {
  for_each_run(tensor.size(), [&](std::size_t to, std::size_t from, std::size_t count) {
    std::ranges::copy(piece.subspan(from, count), tensor.subspan(to, count).begin());
  });
}

Piece::Range share_of(std::size_t size, std::size_t shard, std::size_t shards) {
  const std::size_t first = size * shard / shards;
  return {first, size * (shard + 1) / shards - first};
}

Piece rows_piece(std::size_t rows, std::size_t columns, std::size_t shard, std::size_t shards) {
  return {.whole = {rows, columns}, .rows = share_of(rows, shard, shards), .columns = {{0, columns}}};
}

Piece columns_piece(std::size_t rows, std::size_t columns, std::size_t shard, std::size_t shards,
                    std::size_t blocks) {
  return {.whole = {rows, columns},
          .rows = {0, rows},
          .columns = share_of_blocks(columns, shard, shards, blocks)};
}

Piece vector_piece(std::size_t size, std::size_t shard, std::size_t shards, std::size_t blocks) {
  return {.whole = {size}, .rows = {0, 1}, .columns = share_of_blocks(size, shard, shards, blocks)};
}

}  // namespace starpipe::model
