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

/// Nothing when they are the same.
void copy(const Backend& backend, ConstMemory from, Memory to) noexcept {
  if (from.data() != to.data()) backend.copy(from, to);
}

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
  std::vector<std::size_t> open;  // words of the open residual connections
  std::size_t open_size = 0;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    Place place;
    switch (ops_[i].kind) {
      case StageOp::Kind::layer:
        add_layer(i, columns, place);
        break;
      case StageOp::Kind::residual_begin:
        open_size += open.emplace_back(matrix_size(precision_, columns));
        residual_size_ = std::max(residual_size_, open_size);
        break;
      case StageOp::Kind::residual_end:
        require(!open.empty() && open.back() == matrix_size(precision_, columns),
                "residual connection does not fit");
        open_size -= open.back();
        open.pop_back();
        break;
    }
    place.columns = columns;
    place.output_size = matrix_size(precision_, columns);
    widest = std::max(widest, columns);
    places_.push_back(place);
  }
  require(open.empty(), "residual connection leaves the stage");
  if (loss_ != nullptr) add_loss(columns);
  buffer_size_ = matrix_size(precision_, widest);
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
  stash_size_ += place.stash_size;
  largest_stash_ = std::max(largest_stash_, place.stash_size);
  for (const bool gpu : {false, true}) {
    layer_scratch_[gpu ? 1 : 0] = std::max(layer_scratch_[gpu ? 1 : 0], layer.scratch_words(gpu));
  }
  if (place.parameter_size == 0) return;
  gradient_stash_size_ += matrix_size(precision_, columns);
  first_with_parameters_ = std::min(first_with_parameters_, op);
}

void Stage::add_loss(std::size_t columns) {
  require(loss_->rows() == rows_ && loss_->input_columns() == columns, "loss does not fit the last layer");
  require(loss_->precision() == precision_, "the loss is of another precision");
  stash_size_ += loss_->stash_words();
  largest_stash_ = std::max(largest_stash_, loss_->stash_words());
  for (const bool gpu : {false, true}) {
    layer_scratch_[gpu ? 1 : 0] = std::max(layer_scratch_[gpu ? 1 : 0], loss_->scratch_words(gpu));
  }
}

std::size_t Stage::size_before(std::size_t op) const {
  if (op > 0) return places_[op - 1].output_size;
  return input_columns_.size() == 1 ? input_size(0) : matrix_size(precision_, joined_columns_);
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
  std::size_t open = 0;  // words of open residual connections
  const auto stash_at = [&](std::size_t at, std::size_t size) noexcept {
    return stash.empty() ? room.kept.first(size) : stash.subspan(at, size);
  };

  ConstMemory x = inputs[0].first(input_size(0));
  if (inputs.size() > 1) {
    const Memory joined = room.buffers[0].first(matrix_size(precision_, joined_columns_));
    join(backend, inputs, input_columns_, rows_, joined_columns_, element_bytes(precision_), joined);
    x = joined;
  }
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const Place& place = places_[i];
    const std::size_t size = place.output_size;
    if (ops_[i].kind == StageOp::Kind::residual_begin) {
      copy(backend, x, room.residuals.subspan(open, size));
      open += size;
      continue;
    }
    const bool last = i + 1 == ops_.size() && !is_sink() && !output.empty();
    const Memory y = (last ? output : room.other(x)).first(size);
    if (ops_[i].kind == StageOp::Kind::residual_end) {
      open -= size;
      backend.add(precision_, x, room.residuals.subspan(open, size), y);
    } else {
      backend.forward(*ops_[i].layer, weights_of(place, parameters), x, y,
                      stash_at(place.stash, place.stash_size), room.layer);
    }
    x = y;
  }
  if (is_sink()) {
    const std::size_t size = loss_->stash_words();
    backend.forward(*loss_, x, target.floats(), stash_at(stash_size_ - size, size), output.floats(),
                    room.layer);
  } else if (!output.empty()) {
    copy(backend, x, output.first(x.size()));  // only when there was no op
  }
}

void Stage::run_backward(ConstMemory parameters, ConstMemory stash,
                         std::span<const ConstMemory> output_gradients, float loss_scale,
                         std::span<const Memory> input_gradients, Memory gradient_stash,
                         Memory parameter_gradient, Memory scratch, const Backend& backend) const noexcept {
  const Scratch room = divide(scratch, false);
  std::size_t open = 0;
  const bool source = input_gradients.empty();
  const std::size_t end = source ? first_with_parameters_ : 0;  // a source needs no gradient before it

  // Where the gradient of what ops_[i] reads goes. Straight to where it is needed, when that is known.
  const auto place_for = [&](std::size_t i, ConstMemory current) noexcept -> Memory {
    const std::size_t size = size_before(i);
    if (i == 0 && input_gradients.size() == 1) return input_gradients[0].first(size);
    if (i > 0 && places_[i - 1].parameter_size > 0 && !gradient_stash.empty()) {
      return gradient_stash.subspan(places_[i - 1].gradient, size);
    }
    return room.other(current).first(size);
  };

  ConstMemory dy;
  if (is_sink()) {
    const Memory start = place_for(ops_.size(), {});
    const std::size_t size = loss_->stash_words();
    backend.backward_input(*loss_, stash.subspan(stash_size_ - size, size), loss_scale, start, room.layer);
    dy = start;
  } else {
    dy = output_gradients[0].first(output_size());
    for (const ConstMemory more : output_gradients.subspan(1)) {
      const Memory sum = room.buffers[0].first(dy.size());
      backend.add(precision_, dy, more, sum);  // element by element, so `sum` may be `dy`
      dy = sum;
    }
  }
  for (std::size_t i = ops_.size(); i-- > end;) {
    const Place& place = places_[i];
    if (ops_[i].kind == StageOp::Kind::residual_end) {
      copy(backend, dy, room.residuals.subspan(open, dy.size()));
      open += dy.size();
      continue;
    }
    if (ops_[i].kind == StageOp::Kind::residual_begin) {
      const Memory dx = place_for(i, dy);
      open -= dx.size();
      backend.add(precision_, dy, room.residuals.subspan(open, dx.size()), dx);
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
                             gradient_stash.subspan(place.gradient, place.output_size),
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
