// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/backend.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "starpipe/model/bf16.hpp"
#include "starpipe/model/gradient_norm.hpp"

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
