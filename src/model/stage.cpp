// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/stage.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "starpipe/base/index.hpp"

namespace starpipe::model {
namespace {

/// Joins the inputs by columns: each row of `joined` is the inputs' rows side by side. `bytes`: of an
/// element.
void join(const Backend& backend, std::span<const ConstMemory> inputs, std::span<const std::size_t> columns,
          std::size_t rows, std::size_t joined_columns, std::size_t bytes, Memory joined) noexcept {
  auto* to = joined.as<std::byte>();
  for (std::size_t i = 0; i < inputs.size(); to += columns[i] * bytes, ++i) {
    backend.copy_columns(inputs[i].as<std::byte>(), columns[i] * bytes, to, joined_columns * bytes,
                         columns[i] * bytes, rows);
  }
}

/// Reverses join(): copies the columns of `joined` to `parts`.
void split(const Backend& backend, ConstMemory joined, std::size_t joined_columns,
           std::span<const std::size_t> columns, std::size_t rows, std::size_t bytes,
           std::span<const Memory> parts) noexcept {
  const auto* from = joined.as<std::byte>();
  for (std::size_t i = 0; i < parts.size(); from += columns[i] * bytes, ++i) {
    backend.copy_columns(from, joined_columns * bytes, parts[i].as<std::byte>(), columns[i] * bytes,
                         columns[i] * bytes, rows);
  }
}

/// Copies, unless both views begin at the same address: then the data is in place already.
void copy(const Backend& backend, ConstMemory from, Memory to) noexcept {
  if (from.data() != to.data()) backend.copy(from, to);
}

/// Rounds a number of words up to a multiple of 16 bytes, so that the next array is aligned. Kernels choose
/// by alignment how many bytes they move at a time and in which order they add. As every array is aligned,
/// results do not depend on the sizes of the arrays before.
constexpr std::size_t padded(std::size_t words) { return ceil_div(words, 4) * 4; }

void require_fit(bool fits, const std::string& otherwise) {
  if (!fits) throw std::invalid_argument("stage: " + otherwise);
}

}  // namespace

Stage::Stage(std::vector<StageOp> ops, std::size_t rows, std::vector<std::size_t> input_columns,
             std::shared_ptr<const Loss> loss, Precision precision, Join join)
    : ops_(std::move(ops)),
      rows_(rows),
      input_columns_(std::move(input_columns)),
      loss_(std::move(loss)),
      precision_(precision),
      output_precision_(precision),
      join_(join),
      first_with_parameters_(ops_.size()) {
  require_fit(rows_ > 0 && !input_columns_.empty(), "needs rows and an input");
  joined_columns_ = std::accumulate(input_columns_.begin(), input_columns_.end(), std::size_t{0});
  if (adds_inputs()) {
    joined_columns_ = input_columns_[0];
    require_fit(std::ranges::count(input_columns_, joined_columns_) == std::ssize(input_columns_),
                "inputs to add differ in their columns");
  }
  std::size_t columns = joined_columns_;
  std::size_t widest = columns;
  std::vector<std::size_t> open;  // the residual_begin of each open residual connection
  std::size_t open_size = 0;      // words of the activations that they keep
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    OpLayout layout;
    require_fit(output_precision_ == precision_, "an op follows a layer that writes floats");
    switch (ops_[i].kind) {
      case StageOp::Kind::layer:
        add_layer(i, columns, layout);
        break;
      case StageOp::Kind::residual_begin:
        layout.residual = open_size;
        open_size += padded(matrix_size(precision_, columns));
        residual_size_ = std::max(residual_size_, open_size);
        open.push_back(i);
        break;
      case StageOp::Kind::residual_end:
        require_fit(!open.empty() && layouts_[open.back()].columns == columns,
                    "residual connection does not fit");
        layout.partner = open.back();
        layout.residual = open_size = layouts_[open.back()].residual;
        layouts_[open.back()].partner = i;
        open.pop_back();
        break;
    }
    layout.columns = columns;
    widest = std::max(widest, columns);
    layouts_.push_back(layout);
  }
  require_fit(open.empty(), "residual connection leaves the stage");
  if (loss_ != nullptr) add_loss(columns);
  buffer_size_ = padded(std::max(matrix_size(precision_, widest), output_size()));
  place_activations();
}

void Stage::add_layer(std::size_t op, std::size_t& columns, OpLayout& layout) {
  require_fit(ops_[op].layer != nullptr, "op without its layer");
  const Layer& layer = *ops_[op].layer;
  require_fit(layer.rows() == rows_ && layer.input_columns() == columns,
              "layer " + std::to_string(op) + " does not fit the one before it");
  require_fit(layer.precision() == precision_, "layer " + std::to_string(op) + " is of another precision");
  if (layer.reads_ids()) {
    require_fit(op == 0 && input_columns_.size() == 1, "token ids are not the input");
    reads_ids_ = true;
  }
  if (layer.target_columns() > 0) {
    require_fit(target_columns_ == 0, "several layers read the target");
    target_columns_ = layer.target_columns();
  }
  if (layer.writes_floats()) output_precision_ = Precision::fp32;
  columns = layer.output_columns();
  place_parameters(ops_[op], layout);
  require_fit(!layer.writes_floats() || layout.parameter_size == 0,
              "a layer that writes floats has parameters");
  layout.stash = stash_size_;
  layout.stash_size = layer.stash_words();
  layout.gradient = gradient_stash_size_;
  layout.keys_values = keys_values_size_;
  layout.earlier_gradient = earlier_size_;
  layout.handed_back = handed_back_size_;
  handed_back_size_ += layer.earlier_keys_values_size() + layer.keys_values_size();
  keys_values_size_ += layer.rows() * words(precision_, layer.keys_values_size() / layer.rows());
  earlier_size_ += layer.earlier_keys_values_size();
  stash_size_ += padded(layout.stash_size);
  largest_stash_ = std::max(largest_stash_, padded(layout.stash_size));
  for (const bool gpu : {false, true}) {
    layer_scratch_[gpu ? 1 : 0] = std::max(layer_scratch_[gpu ? 1 : 0], layer.scratch_words(gpu));
  }
  if (layout.parameter_size == 0) return;
  gradient_stash_size_ += padded(matrix_size(precision_, columns));
  first_with_parameters_ = std::min(first_with_parameters_, op);
}

void Stage::place_parameters(const StageOp& op, OpLayout& layout) {
  std::vector<Parameter> parameters = op.layer->parameters();
  for (const Parameter& parameter : parameters) layout.parameter_size += parameter.size();
  const auto fits = [](const Parameter& parameter, const Piece& piece) {
    return !piece || piece.shape() == parameter.shape;
  };
  require_fit(op.pieces.empty() || std::ranges::equal(parameters, op.pieces, fits),
              "pieces do not fit the parameters of their layer");
  for (std::size_t i = 0; i < op.pieces.size(); ++i) parameters[i].piece = op.pieces[i];
  if (op.shared.empty()) {
    layout.parameters = parameter_size_;
    parameter_size_ += layout.parameter_size;
    return;
  }
  require_fit(!parameters.empty(), "a layer without parameters shares " + op.shared);
  auto set = std::ranges::find(shared_, op.shared, &SharedParameters::name);
  if (set == shared_.end()) set = shared_.insert(set, {op.shared, parameters, layout.parameter_size});
  const auto sizes_fit =
      std::ranges::equal(set->parameters, parameters, {}, &Parameter::size, &Parameter::size);
  require_fit(sizes_fit, "layers that share " + op.shared + " have parameters of different sizes");
  layout.set = static_cast<std::size_t>(set - shared_.begin());
}

void Stage::add_loss(std::size_t columns) {
  require_fit(loss_->rows() == rows_ && loss_->input_columns() == columns,
              "loss does not fit the last layer");
  require_fit(loss_->precision() == precision_ && output_precision_ == precision_,
              "the loss is of another precision");
  require_fit(target_columns_ == 0, "a layer reads the target of the loss");
  target_columns_ = loss_->target_columns();
  stash_size_ += loss_->stash_words();
  largest_stash_ = std::max(largest_stash_, padded(loss_->stash_words()));
  for (const bool gpu : {false, true}) {
    layer_scratch_[gpu ? 1 : 0] = std::max(layer_scratch_[gpu ? 1 : 0], loss_->scratch_words(gpu));
  }
}

// In a slice's keys and values the layers' parts follow each other. Each has room for as many rows as the
// slice has, and in bf16 a row has room for a multiple of 8 numbers. So the place of a layer's part is
// proportional to the rows. The numbers themselves lie one behind the other.
class Stage::LayerSlices {
 public:
  LayerSlices(const Stage& stage, std::size_t op, std::span<const ConstMemory> slices) {
    const std::size_t numbers = stage.ops_[op].layer->keys_values_size() / stage.rows_;  // of a row
    if (numbers == 0 || slices.empty()) return;
    views_.emplace();
    for (const ConstMemory slice : slices) {
      const std::size_t rows = slice.size() / (stage.keys_values_size_ / stage.rows_);
      (*views_)[count_++] = slice.subspan(stage.layouts_[op].keys_values / stage.rows_ * rows,
                                          rows * numbers * element_bytes(stage.precision_) / sizeof(float));
    }
  }
  [[nodiscard]] std::span<const ConstMemory> views() const {
    return views_ ? std::span<const ConstMemory>(*views_).first(count_) : std::span<const ConstMemory>();
  }

 private:
  std::optional<std::array<ConstMemory, max_slices>> views_;  // nothing to fill without slices
  std::size_t count_ = 0;
};

std::size_t Stage::activation_read(std::size_t op) const {
  while (op > 0 && is(StageOp::Kind::residual_begin, op - 1)) --op;
  return op;
}

std::size_t Stage::activation_given(std::size_t op) const {
  std::size_t activation = op + 1;
  while (is(StageOp::Kind::residual_end, activation)) ++activation;
  return activation;
}

void Stage::place_activations() {
  for (std::size_t i = 0; i <= ops_.size(); ++i) {
    Activation activation;
    const Precision precision = i == ops_.size() ? output_precision_ : precision_;
    activation.size = i > 0                       ? matrix_size(precision, layouts_[i - 1].columns)
                      : input_columns_.size() > 1 ? matrix_size(precision_, joined_columns_)
                                                  : input_size(0);
    // The op that reads the activation comes after each residual_begin, which passes the activation on.
    std::size_t reader = i;
    while (is(StageOp::Kind::residual_begin, reader)) ++reader;
    if (reader > i) activation.residual = layouts_[i].residual;
    if (is(StageOp::Kind::layer, reader) && ops_[reader].layer->keeps_input()) {
      activation.stash = layouts_[reader].stash;
    }
    // ops_[writer - 1] reads the activation's gradient: each residual_end after it passes the gradient on.
    std::size_t writer = i;
    while (writer > 0 && is(StageOp::Kind::residual_end, writer - 1)) --writer;
    if (writer < i) activation.gradient_residual = layouts_[i - 1].residual;
    if (writer > 0 && layouts_[writer - 1].parameter_size > 0) {
      activation.gradient = layouts_[writer - 1].gradient;
    }
    activations_.push_back(activation);
  }
}

// The stage's parameters are aligned to 16 bytes, but a layer's parameters within them only to an element.
ConstMemory Stage::weights_of(const OpLayout& layout, ConstParameters parameters) const {
  const ConstMemory all = layout.set == none ? parameters.own : parameters.shared[layout.set];
  return {all.as<std::byte>() + layout.parameters * element_bytes(precision_),
          words(precision_, layout.parameter_size)};
}

FloatView Stage::gradient_of(const OpLayout& layout, ParameterGradients gradients) {
  const Memory all = layout.set == none ? gradients.own : gradients.shared[layout.set];
  return all.floats().subspan(layout.parameters, layout.parameter_size);
}

Stage::Scratch Stage::divide(Memory scratch, bool with_layer_stash) const {
  const std::size_t stash = with_layer_stash ? largest_stash_ : 0;
  const std::size_t residuals = 2 * buffer_size_;
  return {.buffers = {scratch.first(buffer_size_), scratch.subspan(buffer_size_, buffer_size_)},
          .residuals = scratch.subspan(residuals, residual_size_),
          .layer_stash = scratch.subspan(residuals + residual_size_, stash),
          .layer = scratch.floats().subspan(residuals + residual_size_ + stash)};
}

std::size_t Stage::output_columns() const {
  if (is_sink()) return 0;
  return layouts_.empty() ? joined_columns_ : layouts_.back().columns;
}

std::vector<Parameter> Stage::parameters() const {
  std::vector<Parameter> result;
  for (const StageOp& op : ops_) {
    if (op.kind != StageOp::Kind::layer || !op.shared.empty()) continue;
    std::vector<Parameter> own = op.layer->parameters();
    for (std::size_t i = 0; i < op.pieces.size(); ++i) own[i].piece = op.pieces[i];
    std::ranges::move(own, std::back_inserter(result));
  }
  return result;
}

double flops(std::span<const StageOp> ops) {
  double total = 0;
  for (const StageOp& op : ops) {
    if (op.layer != nullptr) total += op.layer->flops();
  }
  return total;
}

void Stage::forward(ConstParameters parameters, std::span<const ConstMemory> inputs, ConstMemory target,
                    Memory output, Memory stash, Memory scratch, const Backend& backend,
                    const SliceForward& slice) const noexcept {
  const Scratch parts = divide(scratch, stash.empty());
  // Returns the memory for activation i. `current`: the activation that is still read, and must not be
  // overwritten.
  const auto place_for = [&](std::size_t i, ConstMemory current) noexcept -> Memory {
    const Activation& of = activations_[i];
    if (i == ops_.size() && !is_sink() && !output.empty()) return output.first(of.size);
    if (of.stash != none && !stash.empty()) return stash.subspan(of.stash, of.size);
    if (of.residual != none) return parts.residuals.subspan(of.residual, of.size);
    return parts.other(current).first(of.size);
  };

  ConstMemory start = inputs[0].first(input_size(0));
  if (inputs.size() > 1) {
    const Memory joined = place_for(0, {});
    if (adds_inputs()) {
      for (const ConstMemory more : inputs.subspan(1)) {
        backend.add(precision_, start, more, joined);  // from the third input on, `start` is `joined` itself
        start = joined;
      }
    } else {
      join(backend, inputs, input_columns_, rows_, joined_columns_, element_bytes(precision_), joined);
      start = joined;
    }
  }
  ConstMemory x = start;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const OpLayout& layout = layouts_[i];
    if (ops_[i].kind == StageOp::Kind::residual_begin) continue;
    const Memory y = place_for(i + 1, x);
    if (ops_[i].kind == StageOp::Kind::residual_end) {
      const std::size_t kept = activation_read(layout.partner);
      backend.add(precision_, x, kept == 0 ? start : place_for(kept, {}), y);
    } else {
      const Memory layer_stash = stash.empty() ? parts.layer_stash.first(layout.stash_size)
                                               : stash.subspan(layout.stash, layout.stash_size);
      const Layer& layer = *ops_[i].layer;
      if (layer.target_columns() > 0)
        backend.copy(target.first(layer.target_size()),
                     layer_stash.subspan(layer.target_offset(), layer.target_size()));
      const LayerSlices before(*this, i, slice.keys_values);
      const Memory own = slice.own.subspan(layout.keys_values, words(precision_, layer.keys_values_size()));
      backend.forward(layer,
                      {weights_of(layout, parameters), x, y, layer_stash, parts.layer, before.views(), own});
    }
    x = y;
  }
  if (is_sink()) {
    const std::size_t size = loss_->stash_words();
    const Memory kept =
        stash.empty() ? parts.layer_stash.first(size) : stash.subspan(stash_size_ - size, size);
    backend.forward(*loss_, {x, target.floats(), kept, output.floats(), parts.layer});
  } else if (!output.empty()) {
    copy(backend, x, output.first(x.size()));  // copies only when no op wrote it there
  }
}

void Stage::backward(const Backward& pass, const Backend& backend) const noexcept {
  const Scratch parts = divide(pass.scratch, false);
  const bool source = pass.input_gradients.empty();
  const std::size_t end = source ? first_with_parameters_ : 0;  // a source needs no gradients before this op

  // Returns the memory for the gradient of activation i. `current`: the gradient that is still read, and must
  // not be overwritten.
  const auto place_for = [&](std::size_t i, ConstMemory current) noexcept -> Memory {
    const Activation& of = activations_[i];
    if (i == 0 && pass.input_gradients.size() == 1) return pass.input_gradients[0].first(of.size);
    if (of.gradient != none && !pass.gradient_stash.empty())
      return pass.gradient_stash.subspan(of.gradient, of.size);
    if (of.gradient_residual != none) return parts.residuals.subspan(of.gradient_residual, of.size);
    return parts.other(current).first(of.size);
  };

  ConstMemory start;
  if (is_sink()) {
    const Memory gradient = place_for(ops_.size(), {});
    const std::size_t size = loss_->stash_words();
    backend.backward_input(
        *loss_, {pass.stash.subspan(stash_size_ - size, size), pass.loss_scale, gradient, parts.layer});
    start = gradient;
  } else {
    start = pass.output_gradients[0].first(output_size());
    for (const ConstMemory more : pass.output_gradients.subspan(1)) {
      const Memory sum = place_for(ops_.size(), {});
      backend.add(output_precision_, start, more,
                  sum);  // from the third gradient on, `start` is `sum` itself
      start = sum;
    }
  }
  ConstMemory dy = start;
  for (std::size_t i = ops_.size(); i-- > end;) {
    const OpLayout& layout = layouts_[i];
    if (ops_[i].kind == StageOp::Kind::residual_end) continue;
    if (ops_[i].kind == StageOp::Kind::residual_begin) {
      const std::size_t kept = activation_given(layout.partner);
      const Memory dx = place_for(i, dy);
      backend.add(precision_, dy, kept == ops_.size() ? start : place_for(kept, {}), dx);
      dy = dx;
      continue;
    }
    const ConstMemory layer_stash = pass.stash.subspan(layout.stash, layout.stash_size);
    if (layout.parameter_size > 0) {
      if (!pass.gradient_stash.empty()) {
        copy(backend, dy, pass.gradient_stash.subspan(layout.gradient, dy.size()));
        // The padding behind the numbers is never written.
        if (pass.found != nullptr)
          backend.find_nonfinite(precision_, dy, rows_ * layout.columns, *pass.found);
      }
      if (!pass.parameter_gradient.empty())
        add_weight_gradient(i, pass.stash, dy, pass.parameter_gradient, parts.layer, backend);
    }
    if (source && i == end) return;
    const Memory dx = place_for(i, dy);
    const Layer& layer = *ops_[i].layer;
    const LayerSlices slices(*this, i, pass.slice.keys_values);
    const std::size_t before = layer.earlier_keys_values_size();
    const auto handed = [&](ConstFloatView all) {
      return all.empty() ? all : all.subspan(layout.handed_back, before + layer.keys_values_size());
    };
    backend.backward_input(layer, {.parameters = weights_of(layout, pass.parameters),
                                   .stash = layer_stash,
                                   .output_gradient = dy,
                                   .input_gradient = dx,
                                   .scratch = parts.layer,
                                   .keys_values = slices.views(),
                                   .keys_values_gradient = handed(pass.slice.gradient),
                                   .earlier_gradient = pass.slice.earlier_gradient.empty()
                                                           ? FloatView()
                                                           : pass.slice.earlier_gradient.subspan(
                                                                 layout.earlier_gradient, before)});
    dy = dx;
  }
  if (source) return;
  if (pass.input_gradients.size() > 1) {
    split(backend, dy, joined_columns_, input_columns_, rows_, element_bytes(precision_),
          pass.input_gradients);
  } else {
    copy(backend, dy, pass.input_gradients[0].first(dy.size()));  // copies only when no op wrote it there
  }
}

void Stage::backward_weights(ConstMemory stash, ConstMemory gradient_stash,
                             ParameterGradients parameter_gradient, Memory scratch,
                             const Backend& backend) const noexcept {
  const Scratch parts = divide(scratch, false);
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const OpLayout& layout = layouts_[i];
    if (layout.parameter_size == 0) continue;
    const ConstMemory dy = gradient_stash.subspan(layout.gradient, matrix_size(precision_, layout.columns));
    add_weight_gradient(i, stash, dy, parameter_gradient, parts.layer, backend);
  }
}

void Stage::add_weight_gradient(std::size_t op, ConstMemory stash, ConstMemory dy,
                                ParameterGradients gradients, FloatView scratch,
                                const Backend& backend) const noexcept {
  const OpLayout& layout = layouts_[op];
  backend.backward_weights(*ops_[op].layer, {stash.subspan(layout.stash, layout.stash_size), dy,
                                             gradient_of(layout, gradients), scratch});
}

}  // namespace starpipe::model
