// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/bf16.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace starpipe::model::bf16 {
namespace {

/// Hands out the floats of a scratch, beginning at its front.
class Floats {
 public:
  explicit Floats(Memory scratch) : rest_(scratch.floats()) {}
  std::span<float> take(std::size_t count) {
    const std::span<float> part = rest_.first(count);
    rest_ = rest_.subspan(count);
    return part;
  }
  /// The first `count` bf16 of `from`, as floats in the scratch.
  std::span<const float> widened(ConstMemory from, std::size_t count) {
    const std::span<float> part = take(count);
    widen_bf16(from, part);
    return part;
  }
  /// The floats that have not been handed out.
  [[nodiscard]] std::span<float> rest() const { return rest_; }

 private:
  std::span<float> rest_;
};

std::size_t inputs(const Layer& layer) { return layer.rows() * layer.input_columns(); }
std::size_t outputs(const Layer& layer) { return layer.rows() * layer.output_columns(); }
std::size_t inputs(const Loss& loss) { return loss.rows() * loss.input_columns(); }

std::span<const float> widened_gradient(const Layer& layer, ConstMemory output_gradient, Floats& floats) {
  if (layer.writes_floats()) return output_gradient.floats().first(outputs(layer));
  return floats.widened(output_gradient, outputs(layer));
}

/// Elements of the stash in the layer's precision, and the word of the stash at which its statistics start.
std::size_t elements(const Layer& layer) { return layer.stash_size() - layer.statistics_size(); }
std::size_t statistics_at(const Layer& layer) { return words(Precision::bf16, elements(layer)); }

std::span<const float> widened_stash(const Layer& layer, ConstMemory stash, Floats& floats) {
  const std::span<float> all = floats.take(layer.stash_size());
  widen_bf16(stash, all.first(elements(layer)));
  std::ranges::copy(stash.subspan(statistics_at(layer), layer.statistics_size()).floats(),
                    all.subspan(elements(layer)).begin());
  return all;
}

}  // namespace

void forward(const Layer& layer, ConstMemory parameters, ConstMemory input, Memory output, Memory stash,
             Memory scratch) noexcept {
  Floats floats(scratch);
  const auto weights = floats.widened(parameters, layer.parameter_size());
  const auto x =
      layer.reads_ids() ? input.floats().first(inputs(layer)) : floats.widened(input, inputs(layer));
  const auto y = layer.writes_floats() ? output.floats().first(outputs(layer)) : floats.take(outputs(layer));
  const auto kept = floats.take(layer.stash_size());
  std::ranges::copy(stash.subspan(layer.target_offset(), layer.target_size()).floats(),
                    kept.last(layer.target_size()).begin());
  layer.forward(weights, x, y, kept, floats.rest());
  if (!layer.writes_floats()) round_to_bf16(y, output);
  round_to_bf16(kept.first(elements(layer)), stash);
  std::ranges::copy(kept.subspan(elements(layer)), stash.subspan(statistics_at(layer)).floats().begin());
}

void backward_input(const Layer& layer, ConstMemory parameters, ConstMemory stash,
                    ConstMemory output_gradient, Memory input_gradient, Memory scratch) noexcept {
  Floats floats(scratch);
  const auto weights = floats.widened(parameters, layer.parameter_size());
  const auto kept = widened_stash(layer, stash, floats);
  const auto dy = widened_gradient(layer, output_gradient, floats);
  if (layer.reads_ids()) {
    layer.backward_input(weights, kept, dy, input_gradient.floats(), floats.rest());
    return;
  }
  const auto dx = floats.take(inputs(layer));
  layer.backward_input(weights, kept, dy, dx, floats.rest());
  round_to_bf16(dx, input_gradient);
}

void backward_weights(const Layer& layer, ConstMemory stash, ConstMemory output_gradient,
                      std::span<float> parameter_gradient, Memory scratch) noexcept {
  Floats floats(scratch);
  const auto kept = widened_stash(layer, stash, floats);
  const auto dy = widened_gradient(layer, output_gradient, floats);
  layer.backward_weights(kept, dy, parameter_gradient, floats.rest());
}

float forward(const Loss& loss, ConstMemory input, std::span<const float> target, Memory stash,
              Memory scratch) noexcept {
  Floats floats(scratch);
  const auto x = floats.widened(input, inputs(loss));
  const auto kept = floats.take(loss.stash_size());
  const float mean = loss.forward(x, target, kept);
  round_to_bf16(kept, stash);
  return mean;
}

void backward_input(const Loss& loss, ConstMemory stash, float scale, Memory input_gradient,
                    Memory scratch) noexcept {
  Floats floats(scratch);
  const auto kept = floats.widened(stash, loss.stash_size());
  const auto dx = floats.take(inputs(loss));
  loss.backward_input(kept, scale, dx);
  round_to_bf16(dx, input_gradient);
}

void add(ConstMemory a, ConstMemory b, Memory sum) noexcept {
  constexpr std::size_t block = 256;  // elements that are added at a time
  std::array<float, block> x;
  std::array<float, block> y;
  const std::size_t count = 2 * sum.size();
  for (std::size_t i = 0; i < count; i += block) {
    const std::size_t n = std::min(block, count - i);
    widen_bf16(a.subspan(i / 2), std::span(x).first(n));
    widen_bf16(b.subspan(i / 2), std::span(y).first(n));
    for (std::size_t k = 0; k < n; ++k) x[k] += y[k];
    round_to_bf16(std::span(x).first(n), sum.subspan(i / 2));
  }
}

}  // namespace starpipe::model::bf16
