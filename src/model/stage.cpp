// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/stage.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "starpipe/model/cuda_twin.hpp"

namespace starpipe::model {
namespace {

/// Inputs, one after the other in each row of `joined`.
void join(const Backend& backend, std::span<const std::span<const float>> inputs,
          std::span<const std::size_t> columns, std::size_t rows, std::size_t joined_columns,
          std::span<float> joined) noexcept {
  float* to = joined.data();
  for (std::size_t i = 0; i < inputs.size(); to += columns[i], ++i) {
    backend.copy_columns(inputs[i].data(), columns[i], to, joined_columns, columns[i], rows);
  }
}

/// The reverse of `join`.
void split(const Backend& backend, std::span<const float> joined, std::size_t joined_columns,
           std::span<const std::size_t> columns, std::size_t rows,
           std::span<const std::span<float>> parts) noexcept {
  const float* from = joined.data();
  for (std::size_t i = 0; i < parts.size(); from += columns[i], ++i) {
    backend.copy_columns(from, joined_columns, parts[i].data(), columns[i], columns[i], rows);
  }
}

/// Nothing when they are the same.
void copy(const Backend& backend, std::span<const float> from, std::span<float> to) noexcept {
  if (from.data() != to.data()) backend.copy(from, to);
}

}  // namespace

Stage::Stage(std::vector<StageOp> ops, std::size_t rows, std::vector<std::size_t> input_columns,
             std::shared_ptr<const Loss> loss)
    : ops_(std::move(ops)),
      rows_(rows),
      input_columns_(std::move(input_columns)),
      loss_(std::move(loss)),
      first_with_parameters_(ops_.size()) {
  const auto require = [](bool fits, const std::string& what) {
    if (!fits) throw std::invalid_argument("stage: " + what);
  };
  require(rows_ > 0 && !input_columns_.empty(), "needs rows and an input");
  joined_columns_ = std::accumulate(input_columns_.begin(), input_columns_.end(), std::size_t{0});
  std::size_t columns = joined_columns_;
  std::size_t widest = columns;
  std::size_t layer_scratch = 0;
  std::vector<std::size_t> open;  // columns of the open residual connections
  std::size_t open_columns = 0;
  std::size_t most_open_columns = 0;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const StageOp& op = ops_[i];
    Place place;
    place.parameters = parameter_size_;
    place.stash = stash_size_;
    place.gradient = gradient_stash_size_;
    switch (op.kind) {
      case StageOp::Kind::layer: {
        require(op.layer != nullptr, "op without its layer");
        const Layer& layer = *op.layer;
        require(layer.rows() == rows_ && layer.input_columns() == columns,
                "layer " + std::to_string(i) + " does not fit the one before it");
        columns = layer.output_columns();
        for (const Parameter& parameter : layer.parameters()) place.parameter_size += parameter.size();
        place.stash_size = layer.stash_size();
        parameter_size_ += place.parameter_size;
        stash_size_ += place.stash_size;
        largest_stash_ = std::max(largest_stash_, place.stash_size);
        layer_scratch = std::max(layer_scratch, layer.scratch_size());
        if (layer.cuda() != nullptr) layer_scratch = std::max(layer_scratch, layer.cuda()->scratch_size());
        if (place.parameter_size > 0) {
          gradient_stash_size_ += rows_ * columns;
          first_with_parameters_ = std::min(first_with_parameters_, i);
        }
        break;
      }
      case StageOp::Kind::residual_begin:
        open.push_back(columns);
        open_columns += columns;
        most_open_columns = std::max(most_open_columns, open_columns);
        break;
      case StageOp::Kind::residual_end:
        require(!open.empty() && open.back() == columns, "residual connection does not fit");
        open_columns -= open.back();
        open.pop_back();
        break;
    }
    place.columns = columns;
    widest = std::max(widest, columns);
    places_.push_back(place);
  }
  require(open.empty(), "residual connection leaves the stage");
  if (loss_ != nullptr) {
    require(loss_->rows() == rows_ && loss_->input_columns() == columns, "loss does not fit the last layer");
    stash_size_ += loss_->stash_size();
    largest_stash_ = std::max(largest_stash_, loss_->stash_size());
  }
  buffer_size_ = rows_ * widest;
  residual_size_ = rows_ * most_open_columns;
  scratch_size_ = 2 * buffer_size_ + residual_size_ + layer_scratch;
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

void Stage::forward(std::span<const float> parameters, std::span<const std::span<const float>> inputs,
                    std::span<const float> target, std::span<float> output, std::span<float> stash,
                    std::span<float> scratch, const Backend& backend) const noexcept {
  const std::span<float> buffers[] = {scratch.subspan(0, buffer_size_),
                                      scratch.subspan(buffer_size_, buffer_size_)};
  std::span<float> residuals = scratch.subspan(2 * buffer_size_, residual_size_);
  const std::span<float> layer_scratch = scratch.subspan(2 * buffer_size_ + residual_size_);
  std::size_t open = 0;  // floats of open residual connections
  const auto stash_at = [&](std::size_t at, std::size_t size) noexcept {
    return stash.empty() && size > 0 ? scratch.subspan(scratch_size_, size) : stash.subspan(at, size);
  };

  std::span<const float> x = inputs[0].first(rows_ * input_columns_[0]);
  if (inputs.size() > 1) {
    const std::span<float> joined = buffers[0].first(rows_ * joined_columns_);
    join(backend, inputs, input_columns_, rows_, joined_columns_, joined);
    x = joined;
  }
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const Place& place = places_[i];
    const std::size_t size = rows_ * place.columns;
    if (ops_[i].kind == StageOp::Kind::residual_begin) {
      copy(backend, x, residuals.subspan(open, size));
      open += size;
      continue;
    }
    const bool last = i + 1 == ops_.size() && !is_sink() && !output.empty();
    const std::span<float> y = (last ? output : buffers[x.data() == buffers[0].data() ? 1 : 0]).first(size);
    if (ops_[i].kind == StageOp::Kind::residual_end) {
      open -= size;
      backend.add(x, residuals.subspan(open, size), y);
    } else {
      backend.forward(*ops_[i].layer, parameters.subspan(place.parameters, place.parameter_size), x, y,
                      stash_at(place.stash, place.stash_size), layer_scratch);
    }
    x = y;
  }
  if (is_sink()) {
    const std::size_t size = loss_->stash_size();
    const std::span<float> free = buffers[x.data() == buffers[0].data() ? 1 : 0];
    backend.forward(*loss_, x, target, stash_at(stash_size_ - size, size), output, free.first(rows_));
  } else if (!output.empty()) {
    copy(backend, x, output.first(x.size()));  // only when there was no op
  }
}

void Stage::run_backward(std::span<const float> parameters, std::span<const float> stash,
                         std::span<const std::span<const float>> output_gradients, float loss_scale,
                         std::span<const std::span<float>> input_gradients, std::span<float> gradient_stash,
                         std::span<float> parameter_gradient, std::span<float> scratch,
                         const Backend& backend) const noexcept {
  const std::span<float> buffers[] = {scratch.subspan(0, buffer_size_),
                                      scratch.subspan(buffer_size_, buffer_size_)};
  std::span<float> residuals = scratch.subspan(2 * buffer_size_, residual_size_);
  const std::span<float> layer_scratch = scratch.subspan(2 * buffer_size_ + residual_size_);
  std::size_t open = 0;
  const bool source = input_gradients.empty();
  const std::size_t end = source ? first_with_parameters_ : 0;  // a source needs no gradient before it

  // Where the gradient of what ops_[i] reads goes. Straight to where it is needed, when that is known.
  const auto place_for = [&](std::size_t i, std::span<const float> current) noexcept -> std::span<float> {
    const std::size_t size = rows_ * (i == 0 ? joined_columns_ : places_[i - 1].columns);
    if (i == 0 && input_gradients.size() == 1) return input_gradients[0].first(size);
    if (i > 0 && places_[i - 1].parameter_size > 0 && !gradient_stash.empty()) {
      return gradient_stash.subspan(places_[i - 1].gradient, size);
    }
    return buffers[current.data() == buffers[0].data() ? 1 : 0].first(size);
  };

  std::span<const float> dy;
  if (is_sink()) {
    const std::span<float> start = place_for(ops_.size(), {});
    backend.backward_input(*loss_, stash.subspan(stash_size_ - loss_->stash_size(), loss_->stash_size()),
                           loss_scale, start);
    dy = start;
  } else {
    dy = output_gradients[0].first(rows_ * output_columns());
    for (const std::span<const float> more : output_gradients.subspan(1)) {
      const std::span<float> sum = buffers[0].first(dy.size());
      backend.add(dy, more, sum);  // element by element, so `sum` may be `dy`
      dy = sum;
    }
  }
  for (std::size_t i = ops_.size(); i-- > end;) {
    const Place& place = places_[i];
    if (ops_[i].kind == StageOp::Kind::residual_end) {
      copy(backend, dy, residuals.subspan(open, dy.size()));
      open += dy.size();
      continue;
    }
    if (ops_[i].kind == StageOp::Kind::residual_begin) {
      const std::span<float> dx = place_for(i, dy);
      open -= dx.size();
      backend.add(dy, residuals.subspan(open, dx.size()), dx);
      dy = dx;
      continue;
    }
    const std::span<const float> layer_stash = stash.subspan(place.stash, place.stash_size);
    if (place.parameter_size > 0) {
      if (!gradient_stash.empty()) copy(backend, dy, gradient_stash.subspan(place.gradient, dy.size()));
      if (!parameter_gradient.empty()) {
        backend.backward_weights(*ops_[i].layer, layer_stash, dy,
                                 parameter_gradient.subspan(place.parameters, place.parameter_size),
                                 layer_scratch);
      }
    }
    if (source && i == end) return;
    const std::span<float> dx = place_for(i, dy);
    backend.backward_input(*ops_[i].layer, parameters.subspan(place.parameters, place.parameter_size),
                           layer_stash, dy, dx, layer_scratch);
    dy = dx;
  }
  if (source) return;
  if (input_gradients.size() > 1) {
    split(backend, dy, joined_columns_, input_columns_, rows_, input_gradients);
  } else {
    copy(backend, dy, input_gradients[0].first(dy.size()));  // only when no op wrote it
  }
}

void Stage::backward_input(std::span<const float> parameters, std::span<const float> stash,
                           std::span<const std::span<const float>> output_gradients, float loss_scale,
                           std::span<const std::span<float>> input_gradients, std::span<float> gradient_stash,
                           std::span<float> scratch, const Backend& backend) const noexcept {
  run_backward(parameters, stash, output_gradients, loss_scale, input_gradients, gradient_stash, {}, scratch,
               backend);
}

void Stage::backward_weights(std::span<const float> stash, std::span<const float> gradient_stash,
                             std::span<float> parameter_gradient, std::span<float> scratch,
                             const Backend& backend) const noexcept {
  const std::span<float> layer_scratch = scratch.subspan(2 * buffer_size_ + residual_size_);
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const Place& place = places_[i];
    if (place.parameter_size == 0) continue;
    backend.backward_weights(*ops_[i].layer, stash.subspan(place.stash, place.stash_size),
                             gradient_stash.subspan(place.gradient, rows_ * place.columns),
                             parameter_gradient.subspan(place.parameters, place.parameter_size),
                             layer_scratch);
  }
}

void Stage::backward(std::span<const float> parameters, std::span<const float> stash,
                     std::span<const std::span<const float>> output_gradients, float loss_scale,
                     std::span<const std::span<float>> input_gradients, std::span<float> parameter_gradient,
                     std::span<float> scratch, const Backend& backend) const noexcept {
  run_backward(parameters, stash, output_gradients, loss_scale, input_gradients, {}, parameter_gradient,
               scratch, backend);
}

}  // namespace starpipe::model
