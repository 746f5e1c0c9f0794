// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/stage.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace starpipe::model {
namespace {

/// Inputs, one after the other in each row of `joined`; `bytes` of an element.
void join(const Backend& backend, std::span<const ConstMemory> inputs, std::span<const std::size_t> columns,
          std::size_t rows, std::size_t joined_columns, std::size_t bytes, Memory joined) noexcept {
  auto* to = joined.as<std::byte>();
  for (std::size_t i = 0; i < inputs.size(); to += columns[i] * bytes, ++i) {
    backend.copy_columns(inputs[i].as<std::byte>(), columns[i] * bytes, to, joined_columns * bytes,
                         columns[i] * bytes, rows);
  }
}

/// The reverse of `join`.
void split(const Backend& backend, ConstMemory joined, std::size_t joined_columns,
           std::span<const std::size_t> columns, std::size_t rows, std::size_t bytes,
           std::span<const Memory> parts) noexcept {
  const auto* from = joined.as<std::byte>();
  for (std::size_t i = 0; i < parts.size(); from += columns[i] * bytes, ++i) {
    backend.copy_columns(from, joined_columns * bytes, parts[i].as<std::byte>(), columns[i] * bytes,
                         columns[i] * bytes, rows);
  }
}

/// Nothing when they are the same already.
void copy(const Backend& backend, ConstMemory from, Memory to) noexcept {
  if (from.data() != to.data()) backend.copy(from, to);
}

/// Words up to where the next array begins, a multiple of 16 bytes: so neither what kernels move at a time
/// nor the order of their sums depends on what lies before.
constexpr std::size_t padded(std::size_t words) { return (words + 3) / 4 * 4; }

void require(bool fits, const std::string& what) {
  if (!fits) throw std::invalid_argument("stage: " + what);
}

}  // namespace

Stage::Stage(std::vector<StageOp> ops, std::size_t rows, std::vector<std::size_t> input_columns,
             std::shared_ptr<const Loss> loss, Precision precision)
    : ops_(std::move(ops)),
      rows_(rows),
      input_columns_(std::move(input_columns)),
      loss_(std::move(loss)),
      precision_(precision),
      first_with_parameters_(ops_.size()) {
  require(rows_ > 0 && !input_columns_.empty(), "needs rows and an input");
  joined_columns_ = std::accumulate(input_columns_.begin(), input_columns_.end(), std::size_t{0});
  std::size_t columns = joined_columns_;
  std::size_t widest = columns;
  std::vector<std::size_t> open;  // residual connections
  std::size_t open_size = 0;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    Place place;
    switch (ops_[i].kind) {
      case StageOp::Kind::layer:
        add_layer(i, columns, place);
        break;
      case StageOp::Kind::residual_begin:
        place.residual = open_size;
        open_size += padded(matrix_size(precision_, columns));
        residual_size_ = std::max(residual_size_, open_size);
        open.push_back(i);
        break;
      case StageOp::Kind::residual_end:
        require(!open.empty() && places_[open.back()].columns == columns, "residual connection does not fit");
        place.partner = open.back();
        place.residual = open_size = places_[open.back()].residual;
        places_[open.back()].partner = i;
        open.pop_back();
        break;
    }
    place.columns = columns;
    widest = std::max(widest, columns);
    places_.push_back(place);
  }
  require(open.empty(), "residual connection leaves the stage");
  if (loss_ != nullptr) add_loss(columns);
  buffer_size_ = padded(matrix_size(precision_, widest));
  find_places();
}

void Stage::add_layer(std::size_t op, std::size_t& columns, Place& place) {
  require(ops_[op].layer != nullptr, "op without its layer");
  const Layer& layer = *ops_[op].layer;
  require(layer.rows() == rows_ && layer.input_columns() == columns,
          "layer " + std::to_string(op) + " does not fit the one before it");
  require(layer.precision() == precision_, "layer " + std::to_string(op) + " is of another precision");
  if (layer.reads_ids()) {
    require(op == 0 && input_columns_.size() == 1, "token ids are not the input");
    reads_ids_ = true;
  }
  columns = layer.output_columns();
  place.parameters = parameter_size_;
  for (const Parameter& parameter : layer.parameters()) place.parameter_size += parameter.size();
  place.stash = stash_size_;
  place.stash_size = layer.stash_words();
  place.gradient = gradient_stash_size_;
  parameter_size_ += place.parameter_size;
  stash_size_ += padded(place.stash_size);
  largest_stash_ = std::max(largest_stash_, padded(place.stash_size));
  for (const bool gpu : {false, true}) {
    layer_scratch_[gpu ? 1 : 0] = std::max(layer_scratch_[gpu ? 1 : 0], layer.scratch_words(gpu));
  }
  if (place.parameter_size == 0) return;
  gradient_stash_size_ += padded(matrix_size(precision_, columns));
  first_with_parameters_ = std::min(first_with_parameters_, op);
}

void Stage::add_loss(std::size_t columns) {
  require(loss_->rows() == rows_ && loss_->input_columns() == columns, "loss does not fit the last layer");
  require(loss_->precision() == precision_, "the loss is of another precision");
  stash_size_ += loss_->stash_words();
  largest_stash_ = std::max(largest_stash_, padded(loss_->stash_words()));
  for (const bool gpu : {false, true}) {
    layer_scratch_[gpu ? 1 : 0] = std::max(layer_scratch_[gpu ? 1 : 0], loss_->scratch_words(gpu));
  }
}

std::size_t Stage::value_read(std::size_t op) const {
  while (op > 0 && is(StageOp::Kind::residual_begin, op - 1)) --op;
  return op;
}

std::size_t Stage::value_given(std::size_t op) const {
  std::size_t value = op + 1;
  while (is(StageOp::Kind::residual_end, value)) ++value;
  return value;
}

void Stage::find_places() {
  for (std::size_t i = 0; i <= ops_.size(); ++i) {
    Value value;
    value.size = i > 0                       ? matrix_size(precision_, places_[i - 1].columns)
                 : input_columns_.size() > 1 ? matrix_size(precision_, joined_columns_)
                                             : input_size(0);
    std::size_t reader = i;
    while (is(StageOp::Kind::residual_begin, reader)) ++reader;
    if (reader > i) value.residual = places_[i].residual;
    if (is(StageOp::Kind::layer, reader) && ops_[reader].layer->keeps_input()) {
      value.stash = places_[reader].stash;
    }
    std::size_t writer = i;  // the op before it
    while (writer > 0 && is(StageOp::Kind::residual_end, writer - 1)) --writer;
    if (writer < i) value.gradient_residual = places_[i - 1].residual;
    if (writer > 0 && places_[writer - 1].parameter_size > 0) {
      value.gradient = places_[writer - 1].gradient;
    }
    values_.push_back(value);
  }
}

// A layer's weights start at any element; arrays are aligned, not what is within.
ConstMemory Stage::weights_of(const Place& place, ConstMemory parameters) const {
  return {parameters.as<std::byte>() + place.parameters * element_bytes(precision_),
          words(precision_, place.parameter_size)};
}

Stage::Scratch Stage::divide(Memory scratch, bool with_kept) const {
  const std::size_t kept = with_kept ? largest_stash_ : 0;
  const std::size_t residuals = 2 * buffer_size_;
  return {.buffers = {scratch.first(buffer_size_), scratch.subspan(buffer_size_, buffer_size_)},
          .residuals = scratch.subspan(residuals, residual_size_),
          .kept = scratch.subspan(residuals + residual_size_, kept),
          .layer = scratch.subspan(residuals + residual_size_ + kept)};
}

std::size_t Stage::output_columns() const {
  if (is_sink()) return 0;
  return places_.empty() ? joined_columns_ : places_.back().columns;
}

std::size_t Stage::target_columns() const { return is_sink() ? loss_->target_columns() : 0; }

std::vector<Parameter> Stage::parameters() const {
  std::vector<Parameter> result;
  for (const StageOp& op : ops_) {
    if (op.kind != StageOp::Kind::layer) continue;
    for (Parameter& parameter : op.layer->parameters()) result.push_back(std::move(parameter));
  }
  return result;
}

double Stage::flops() const {
  double total = 0;
  for (const StageOp& op : ops_) {
    if (op.kind == StageOp::Kind::layer) total += op.layer->flops();
  }
  return total;
}

void Stage::forward(ConstMemory parameters, std::span<const ConstMemory> inputs, ConstMemory target,
                    Memory output, Memory stash, Memory scratch, const Backend& backend) const noexcept {
  const Scratch room = divide(scratch, stash.empty());
  // `current`: what must not be overwritten.
  const auto place_for = [&](std::size_t value, ConstMemory current) noexcept -> Memory {
    const Value& of = values_[value];
    if (value == ops_.size() && !is_sink() && !output.empty()) return output.first(of.size);
    if (of.stash != kNone && !stash.empty()) return stash.subspan(of.stash, of.size);
    if (of.residual != kNone) return room.residuals.subspan(of.residual, of.size);
    return room.other(current).first(of.size);
  };

  ConstMemory start = inputs[0].first(input_size(0));
  if (inputs.size() > 1) {
    const Memory joined = place_for(0, {});
    join(backend, inputs, input_columns_, rows_, joined_columns_, element_bytes(precision_), joined);
    start = joined;
  }
  ConstMemory x = start;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const Place& place = places_[i];
    if (ops_[i].kind == StageOp::Kind::residual_begin) continue;
    const Memory y = place_for(i + 1, x);
    if (ops_[i].kind == StageOp::Kind::residual_end) {
      const std::size_t kept = value_read(place.partner);
      backend.add(precision_, x, kept == 0 ? start : place_for(kept, {}), y);
    } else {
      const Memory layer_stash =
          stash.empty() ? room.kept.first(place.stash_size) : stash.subspan(place.stash, place.stash_size);
      backend.forward(*ops_[i].layer, weights_of(place, parameters), x, y, layer_stash, room.layer);
    }
    x = y;
  }
  if (is_sink()) {
    const std::size_t size = loss_->stash_words();
    backend.forward(*loss_, x, target.floats(),
                    stash.empty() ? room.kept.first(size) : stash.subspan(stash_size_ - size, size),
                    output.floats(), room.layer);
  } else if (!output.empty()) {
    copy(backend, x, output.first(x.size()));  // only when no op wrote it
  }
}

void Stage::run_backward(ConstMemory parameters, ConstMemory stash,
                         std::span<const ConstMemory> output_gradients, float loss_scale,
                         std::span<const Memory> input_gradients, Memory gradient_stash,
                         Memory parameter_gradient, Memory scratch, const Backend& backend) const noexcept {
  const Scratch room = divide(scratch, false);
  const bool source = input_gradients.empty();
  const std::size_t end = source ? first_with_parameters_ : 0;  // a source needs no gradient before it

  // Of the gradient of values_[value]. `current`: what must not be overwritten.
  const auto place_for = [&](std::size_t value, ConstMemory current) noexcept -> Memory {
    const Value& of = values_[value];
    if (value == 0 && input_gradients.size() == 1) return input_gradients[0].first(of.size);
    if (of.gradient != kNone && !gradient_stash.empty()) return gradient_stash.subspan(of.gradient, of.size);
    if (of.gradient_residual != kNone) return room.residuals.subspan(of.gradient_residual, of.size);
    return room.other(current).first(of.size);
  };

  ConstMemory start;
  if (is_sink()) {
    const Memory gradient = place_for(ops_.size(), {});
    const std::size_t size = loss_->stash_words();
    backend.backward_input(*loss_, stash.subspan(stash_size_ - size, size), loss_scale, gradient, room.layer);
    start = gradient;
  } else {
    start = output_gradients[0].first(output_size());
    for (const ConstMemory more : output_gradients.subspan(1)) {
      const Memory sum = place_for(ops_.size(), {});
      backend.add(precision_, start, more, sum);  // from the third on, `start` is `sum`
      start = sum;
    }
  }
  ConstMemory dy = start;
  for (std::size_t i = ops_.size(); i-- > end;) {
    const Place& place = places_[i];
    if (ops_[i].kind == StageOp::Kind::residual_end) continue;
    if (ops_[i].kind == StageOp::Kind::residual_begin) {
      const std::size_t kept = value_given(place.partner);
      const Memory dx = place_for(i, dy);
      backend.add(precision_, dy, kept == ops_.size() ? start : place_for(kept, {}), dx);
      dy = dx;
      continue;
    }
    const ConstMemory layer_stash = stash.subspan(place.stash, place.stash_size);
    if (place.parameter_size > 0) {
      if (!gradient_stash.empty()) copy(backend, dy, gradient_stash.subspan(place.gradient, dy.size()));
      if (!parameter_gradient.empty()) {
        backend.backward_weights(*ops_[i].layer, layer_stash, dy,
                                 parameter_gradient.subspan(place.parameters, place.parameter_size).floats(),
                                 room.layer);
      }
    }
    if (source && i == end) return;
    const Memory dx = place_for(i, dy);
    backend.backward_input(*ops_[i].layer, weights_of(place, parameters), layer_stash, dy, dx, room.layer);
    dy = dx;
  }
  if (source) return;
  if (input_gradients.size() > 1) {
    split(backend, dy, joined_columns_, input_columns_, rows_, element_bytes(precision_), input_gradients);
  } else {
    copy(backend, dy, input_gradients[0].first(dy.size()));  // only when no op wrote it
  }
}

void Stage::backward_input(ConstMemory parameters, ConstMemory stash,
                           std::span<const ConstMemory> output_gradients, float loss_scale,
                           std::span<const Memory> input_gradients, Memory gradient_stash, Memory scratch,
                           const Backend& backend) const noexcept {
  run_backward(parameters, stash, output_gradients, loss_scale, input_gradients, gradient_stash, {}, scratch,
               backend);
}

void Stage::backward_weights(ConstMemory stash, ConstMemory gradient_stash, Memory parameter_gradient,
                             Memory scratch, const Backend& backend) const noexcept {
  const Scratch room = divide(scratch, false);
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const Place& place = places_[i];
    if (place.parameter_size == 0) continue;
    backend.backward_weights(*ops_[i].layer, stash.subspan(place.stash, place.stash_size),
                             gradient_stash.subspan(place.gradient, matrix_size(precision_, place.columns)),
                             parameter_gradient.subspan(place.parameters, place.parameter_size).floats(),
                             room.layer);
  }
}

void Stage::backward(ConstMemory parameters, ConstMemory stash, std::span<const ConstMemory> output_gradients,
                     float loss_scale, std::span<const Memory> input_gradients, Memory parameter_gradient,
                     Memory scratch, const Backend& backend) const noexcept {
  run_backward(parameters, stash, output_gradients, loss_scale, input_gradients, {}, parameter_gradient,
               scratch, backend);
}

}  // namespace starpipe::model
