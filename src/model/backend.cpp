// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/backend.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "starpipe/model/layer.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::model::bf16 {

void forward(const Layer& layer, ConstMemory parameters, ConstMemory input, Memory output, Memory stash,
             Memory scratch) noexcept;
void backward_input(const Layer& layer, ConstMemory parameters, ConstMemory stash,
                    ConstMemory output_gradient, Memory input_gradient, Memory scratch) noexcept;
void backward_weights(const Layer& layer, ConstMemory stash, ConstMemory output_gradient,
                      std::span<float> parameter_gradient, Memory scratch) noexcept;
/// Returns the mean loss.
float forward(const Loss& loss, ConstMemory input, std::span<const float> target, Memory stash,
              Memory scratch) noexcept;
void backward_input(const Loss& loss, ConstMemory stash, float scale, Memory input_gradient,
                    Memory scratch) noexcept;
/// sum = a + b for all bf16 that `sum` holds, padding included.
void add(ConstMemory a, ConstMemory b, Memory sum) noexcept;

}  // namespace starpipe::model::bf16

namespace starpipe::model {
namespace {

// Whether all numbers are finite. `infinity`: the bits of infinity, which are above those of every finite
// number and not above those of NaN. The loop has no exit, so that compilers vectorise it.
template <class Bits>
bool all_finite(const Bits* numbers, std::size_t count, Bits infinity) {
  constexpr auto without_sign = static_cast<Bits>(static_cast<Bits>(-1) >> 1U);
  Bits largest = 0;
  for (std::size_t i = 0; i < count; ++i)
    largest = std::max(largest, static_cast<Bits>(numbers[i] & without_sign));
  return largest < infinity;
}

bool is_bf16(Precision precision) { return precision == Precision::bf16; }

class CpuBackend final : public Backend {
 public:
  void zero(Memory memory) const noexcept override { std::ranges::fill(memory.floats(), 0.0f); }
  void copy(ConstMemory from, Memory to) const noexcept override {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.floats().size_bytes());
  }
  void add(Precision precision, ConstMemory a, ConstMemory b, Memory sum) const noexcept override {
    if (is_bf16(precision)) return bf16::add(a, b, sum);
    const auto* x = a.as<float>();
    const auto* y = b.as<float>();
    auto* z = sum.as<float>();
    for (std::size_t i = 0; i < sum.size(); ++i) z[i] = x[i] + y[i];
  }
  void copy_columns(const std::byte* from, std::size_t from_stride, std::byte* to, std::size_t to_stride,
                    std::size_t columns, std::size_t rows) const noexcept override {
    for (std::size_t r = 0; r < rows; ++r) std::memcpy(to + r * to_stride, from + r * from_stride, columns);
  }
  void round(std::span<const float> from, Memory to) const noexcept override { round_to_bf16(from, to); }
  void find_nonfinite(Precision precision, ConstMemory values, std::size_t count,
                      float& found) const noexcept override {
    const bool finite = is_bf16(precision)
                            ? all_finite<std::uint16_t>(values.as<std::uint16_t>(), count, 0x7f80U)
                            : all_finite<std::uint32_t>(values.as<std::uint32_t>(), count, 0x7f800000U);
    if (!finite) found = 1;
  }

  void forward(const Layer& layer, ConstMemory parameters, ConstMemory input, Memory output, Memory stash,
               Memory scratch) const noexcept override {
    if (is_bf16(layer.precision())) {
      return bf16::forward(layer, parameters, input, output, stash, scratch);
    }
    layer.forward(parameters.floats(), input.floats(), output.floats(), stash.floats(), scratch.floats());
  }
  void backward_input(const Layer& layer, ConstMemory parameters, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      Memory scratch) const noexcept override {
    if (is_bf16(layer.precision())) {
      return bf16::backward_input(layer, parameters, stash, output_gradient, input_gradient, scratch);
    }
    layer.backward_input(parameters.floats(), stash.floats(), output_gradient.floats(),
                         input_gradient.floats(), scratch.floats());
  }
  void backward_weights(const Layer& layer, ConstMemory stash, ConstMemory output_gradient,
                        std::span<float> parameter_gradient, Memory scratch) const noexcept override {
    if (is_bf16(layer.precision())) {
      return bf16::backward_weights(layer, stash, output_gradient, parameter_gradient, scratch);
    }
    layer.backward_weights(stash.floats(), output_gradient.floats(), parameter_gradient, scratch.floats());
  }
  void forward(const Loss& loss, ConstMemory input, std::span<const float> target, Memory stash,
               std::span<float> mean, Memory scratch) const noexcept override {
    const float value = is_bf16(loss.precision()) ? bf16::forward(loss, input, target, stash, scratch)
                                                  : loss.forward(input.floats(), target, stash.floats());
    if (!mean.empty()) mean[0] = value;
  }
  void backward_input(const Loss& loss, ConstMemory stash, float scale, Memory input_gradient,
                      Memory scratch) const noexcept override {
    if (is_bf16(loss.precision())) {
      return bf16::backward_input(loss, stash, scale, input_gradient, scratch);
    }
    loss.backward_input(stash.floats(), scale, input_gradient.floats());
  }
  void update(const OptimizerConfig& config, const Update& update, std::span<const float> gradient,
              std::span<float> parameters, std::span<float> state) const noexcept override {
    optimizer_step(config, update, gradient, parameters, state);
  }
  void sum_squares(std::span<const float> values, std::span<const std::size_t> sizes, std::span<double> sums,
                   Memory /*scratch*/) const noexcept override {
    std::size_t first = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sums[i] = sum_of_squares(values.subspan(first, sizes[i]));
      first += sizes[i];
    }
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace starpipe::model

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
