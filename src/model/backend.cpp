// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/backend.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "model/full_width.hpp"
#include "starpipe/model/layer.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::model {
namespace {

/// True if all numbers are finite. `infinity`: the bits of infinity, which are larger than the bits of every
/// finite number and not larger than the bits of NaN. The numbers are floats or bf16, so their bits are
/// copied. The loop has no exit, so that compilers vectorise it.
template <class Bits>
bool all_finite(const std::byte* numbers, std::size_t count, Bits infinity) {
  constexpr auto without_sign = static_cast<Bits>(static_cast<Bits>(-1) >> 1U);
  Bits largest = 0;
  at_full_width([&] {
    for (std::size_t i = 0; i < count; ++i) {
      Bits bits = 0;
      std::memcpy(&bits, numbers + i * sizeof bits, sizeof bits);
      largest = std::max(largest, static_cast<Bits>(bits & without_sign));
    }
  });
  return largest < infinity;
}

bool is_bf16(Precision precision) { return precision == Precision::bf16; }

/// sum = a + b for all bf16 that `sum` holds, padding included.
void add_bf16(ConstMemory a, ConstMemory b, Memory sum) {
  constexpr std::size_t block = 256;  // elements that are added at a time
  std::array<float, block> x;
  std::array<float, block> y;
  const std::size_t count = 2 * sum.size();
  for (std::size_t i = 0; i < count; i += block) {
    const std::size_t n = std::min(block, count - i);
    widen_bf16(a.subspan(i / 2), std::span(x).first(n));
    widen_bf16(b.subspan(i / 2), std::span(y).first(n));
    at_full_width([&] {
      for (std::size_t k = 0; k < n; ++k) x[k] += y[k];
    });
    round_to_bf16(std::span(x).first(n), sum.subspan(i / 2));
  }
}

std::size_t inputs(const auto& of) { return of.rows() * of.input_columns(); }
std::size_t outputs(const Layer& layer) { return layer.rows() * layer.output_columns(); }

/// Returns the number of elements of the stash in the layer's precision, and the word of a bf16 stash at
/// which its statistics start.
std::size_t elements(const Layer& layer) { return layer.stash_size() - layer.statistics_size(); }
std::size_t statistics_at(const Layer& layer) { return words(Precision::bf16, elements(layer)); }

/// The arrays of a bf16 pass as floats, in its scratch.
class WidenedArrays {
 public:
  explicit WidenedArrays(FloatView scratch) : rest_(scratch) {}

  /// Hands out `count` floats of the scratch.
  FloatView take(std::size_t count) {
    const FloatView part = rest_.first(count);
    rest_ = rest_.subspan(count);
    return part;
  }
  ConstFloatView widened(ConstMemory from, std::size_t count) {
    const FloatView part = take(count);
    widen_bf16(from, part);
    return part;
  }
  ConstFloatView output_gradient(const Layer& layer, ConstMemory gradient) {
    if (layer.writes_floats()) return gradient.floats().first(outputs(layer));
    return widened(gradient, outputs(layer));
  }
  ConstFloatView stash(const Layer& layer, ConstMemory stash) {
    const FloatView all = take(layer.stash_size());
    widen_bf16(stash, all.first(elements(layer)));
    std::ranges::copy(stash.subspan(statistics_at(layer), layer.statistics_size()).floats(),
                      all.subspan(elements(layer)).begin());
    return all;
  }
  /// Returns the floats that have not been handed out.
  [[nodiscard]] FloatView rest() const { return rest_; }

 private:
  FloatView rest_;
};

/// The keys and values of several slices as floats.
class FloatSlices {
 public:
  explicit FloatSlices(std::span<const ConstMemory> slices) {
    fill(slices, [](ConstMemory slice) { return slice.floats(); });
  }
  /// Widens slices in bf16.
  FloatSlices(std::span<const ConstMemory> slices, WidenedArrays& arrays) {
    fill(slices, [&](ConstMemory slice) { return arrays.widened(slice, 2 * slice.size()); });
  }
  [[nodiscard]] std::span<const ConstFloatView> views() const {
    return views_ ? std::span<const ConstFloatView>(*views_).first(count_)
                  : std::span<const ConstFloatView>();
  }

 private:
  template <class Convert>
  void fill(std::span<const ConstMemory> slices, Convert convert) {
    if (slices.empty()) return;
    std::ranges::transform(slices, views_.emplace().begin(), convert);
    count_ = slices.size();
  }

  std::optional<std::array<ConstFloatView, max_slices>> views_;  // nothing to fill without slices
  std::size_t count_ = 0;
};

class CpuBackend final : public Backend {
 public:
  void zero(Memory memory) const noexcept override { std::ranges::fill(memory.floats(), 0.0f); }
  void copy(ConstMemory from, Memory to) const noexcept override {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.floats().size_bytes());
  }
  void add(Precision precision, ConstMemory a, ConstMemory b, Memory sum) const noexcept override {
    if (is_bf16(precision)) return add_bf16(a, b, sum);
    const auto* x = a.as<float>();
    const auto* y = b.as<float>();
    auto* z = sum.as<float>();
    const std::size_t size = sum.size();
    at_full_width([&] {
      for (std::size_t i = 0; i < size; ++i) z[i] = x[i] + y[i];
    });
  }
  void copy_columns(const std::byte* from, std::size_t from_stride, std::byte* to, std::size_t to_stride,
                    std::size_t columns, std::size_t rows) const noexcept override {
    for (std::size_t r = 0; r < rows; ++r) std::memcpy(to + r * to_stride, from + r * from_stride, columns);
  }
  void round(ConstFloatView from, Memory to) const noexcept override { round_to_bf16(from, to); }
  void find_nonfinite(Precision precision, ConstMemory values, std::size_t count,
                      float& found) const noexcept override {
    const auto* const numbers = values.as<std::byte>();
    const bool finite = is_bf16(precision) ? all_finite<std::uint16_t>(numbers, count, 0x7f80U)
                                           : all_finite<std::uint32_t>(numbers, count, 0x7f800000U);
    if (!finite) found = 1;
  }

  void forward(const Layer& layer, const Forward& pass) const noexcept override {
    if (!is_bf16(layer.precision())) {
      const FloatSlices before(pass.keys_values);
      return layer.forward({pass.parameters.floats(), pass.input.floats(), pass.output.floats(),
                            pass.stash.floats(), pass.scratch, before.views(),
                            pass.own_keys_values.floats()});
    }
    if (layer.bf16_scratch_size()) return layer.forward_bf16(pass);
    WidenedArrays arrays(pass.scratch);
    const auto weights = arrays.widened(pass.parameters, layer.parameter_size());
    const auto x = layer.reads_ids() ? pass.input.floats().first(inputs(layer))
                                     : arrays.widened(pass.input, inputs(layer));
    const auto y =
        layer.writes_floats() ? pass.output.floats().first(outputs(layer)) : arrays.take(outputs(layer));
    const auto kept = arrays.take(layer.stash_size());
    std::ranges::copy(pass.stash.subspan(layer.target_offset(), layer.target_size()).floats(),
                      kept.last(layer.target_size()).begin());
    const FloatSlices before(pass.keys_values, arrays);
    const auto own = arrays.take(layer.keys_values_size());
    layer.forward({weights, x, y, kept, arrays.rest(), before.views(), own});
    round_to_bf16(own, pass.own_keys_values);
    if (!layer.writes_floats()) round_to_bf16(y, pass.output);
    round_to_bf16(kept.first(elements(layer)), pass.stash);
    std::ranges::copy(kept.subspan(elements(layer)),
                      pass.stash.subspan(statistics_at(layer)).floats().begin());
  }

  void backward_input(const Layer& layer, const Backward& pass) const noexcept override {
    if (!is_bf16(layer.precision())) {
      const FloatSlices slices(pass.keys_values);
      return layer.backward_input({pass.parameters.floats(), pass.stash.floats(),
                                   pass.output_gradient.floats(), pass.input_gradient.floats(), pass.scratch,
                                   slices.views(), pass.keys_values_gradient, pass.earlier_gradient});
    }
    if (layer.bf16_scratch_size()) return layer.backward_input_bf16(pass);
    WidenedArrays arrays(pass.scratch);
    const auto weights = arrays.widened(pass.parameters, layer.parameter_size());
    const auto kept = arrays.stash(layer, pass.stash);
    const auto dy = arrays.output_gradient(layer, pass.output_gradient);
    const auto dx = layer.reads_ids() ? pass.input_gradient.floats() : arrays.take(inputs(layer));
    const FloatSlices slices(pass.keys_values, arrays);
    layer.backward_input({weights, kept, dy, dx, arrays.rest(), slices.views(), pass.keys_values_gradient,
                          pass.earlier_gradient});
    if (!layer.reads_ids()) round_to_bf16(dx, pass.input_gradient);
  }

  void backward_weights(const Layer& layer, const Weights& pass) const noexcept override {
    if (!is_bf16(layer.precision()))
      return layer.backward_weights(
          {pass.stash.floats(), pass.output_gradient.floats(), pass.parameter_gradient, pass.scratch});
    if (layer.bf16_scratch_size()) return layer.backward_weights_bf16(pass);
    WidenedArrays arrays(pass.scratch);
    const auto kept = arrays.stash(layer, pass.stash);
    const auto dy = arrays.output_gradient(layer, pass.output_gradient);
    layer.backward_weights({kept, dy, pass.parameter_gradient, arrays.rest()});
  }

  void forward(const Loss& loss, const LossForward& pass) const noexcept override {
    float value = 0;
    if (is_bf16(loss.precision())) {
      WidenedArrays arrays(pass.scratch);
      const auto x = arrays.widened(pass.input, inputs(loss));
      const auto kept = arrays.take(loss.stash_size());
      value = loss.forward(x, pass.target, kept);
      round_to_bf16(kept, pass.stash);
    } else {
      value = loss.forward(pass.input.floats(), pass.target, pass.stash.floats());
    }
    if (!pass.mean.empty()) pass.mean[0] = value;
  }

  void backward_input(const Loss& loss, const LossBackward& pass) const noexcept override {
    if (!is_bf16(loss.precision()))
      return loss.backward_input(pass.stash.floats(), pass.scale, pass.input_gradient.floats());
    WidenedArrays arrays(pass.scratch);
    const auto kept = arrays.widened(pass.stash, loss.stash_size());
    const auto dx = arrays.take(inputs(loss));
    loss.backward_input(kept, pass.scale, dx);
    round_to_bf16(dx, pass.input_gradient);
  }

  void update(const OptimizerConfig& config, const Update& update, ConstFloatView gradient,
              FloatView parameters, FloatView state) const noexcept override {
    optimizer_step(config, update, gradient, parameters, state);
  }
  void sum_squares(ConstFloatView values, std::span<const std::size_t> sizes, std::span<double> sums,
                   Memory /*scratch*/) const noexcept override {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sums[i] = sum_of_squares(values.first(sizes[i]));
      values = values.subspan(sizes[i]);
    }
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace starpipe::model
