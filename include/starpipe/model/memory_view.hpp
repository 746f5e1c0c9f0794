// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "starpipe/base/index.hpp"

namespace starpipe::model {

using FloatView = std::span<float>;
using ConstFloatView = std::span<const float>;

/// A view of memory of a host or a device, counted in words of 4 bytes. It does not know the type of the
/// elements (a word is a float or two bf16): the user asks for a pointer to the type that lies there. Does
/// not own the memory.
template <bool Const>
class MemoryView {
  template <class T>
  using Of = std::conditional_t<Const, const T, T>;

 public:
  MemoryView() = default;
  MemoryView(Of<void>* data, std::size_t words) : data_(data), size_(words) {}
  /// A view of floats, from everything that converts to a span of floats.
  template <class FloatView>
  // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): a view is not a span
  requires std::convertible_to<FloatView, std::span<Of<float>>> MemoryView(FloatView&& floats) {
    const std::span<Of<float>> span = std::forward<FloatView>(floats);
    data_ = span.data();
    size_ = span.size();
  }
  template <bool Other>
  requires(Const && !Other) MemoryView(const MemoryView<Other>& other)
      : data_(other.data()), size_(other.size()) {}

  [[nodiscard]] Of<void>* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }  ///< in words
  [[nodiscard]] bool empty() const { return size_ == 0; }

  template <class T>
  [[nodiscard]] Of<T>* as() const {
    return static_cast<Of<T>*>(data_);
  }
  [[nodiscard]] std::span<Of<float>> floats() const { return {as<float>(), size_}; }

  [[nodiscard]] MemoryView first(std::size_t words) const { return {data_, words}; }
  [[nodiscard]] MemoryView subspan(std::size_t offset) const { return subspan(offset, size_ - offset); }
  [[nodiscard]] MemoryView subspan(std::size_t offset, std::size_t words) const {
    return {as<float>() + offset, words};
  }

 private:
  Of<void>* data_ = nullptr;
  std::size_t size_ = 0;
};

using Memory = MemoryView<false>;
using ConstMemory = MemoryView<true>;

/// How passes store numbers and multiply matrices.
enum class Precision : std::uint8_t {
  fp32,
  tf32,  ///< stores fp32; GPUs multiply matrices with 10 bits of each operand's mantissa
  bf16,  ///< stores the upper half of an fp32; sums, statistics, ids, targets and losses are fp32
};

/// The precisions' words, in the order of the enum.
inline constexpr std::array<std::string_view, 3> precision_words = {"fp32", "tf32", "bf16"};
std::string_view to_string(Precision precision);

constexpr std::size_t element_bytes(Precision precision) { return precision == Precision::bf16 ? 2 : 4; }

/// Words of 4 bytes of an array of `elements` numbers in the precision, followed by an array of `floats`
/// floats (fp32 in any precision). In bf16 both arrays are padded to 16 bytes, so that the next array is
/// aligned.
constexpr std::size_t words(Precision precision, std::size_t elements, std::size_t floats = 0) {
  if (precision != Precision::bf16) return elements + floats;
  return ceil_div(elements, 8) * 4 + ceil_div(floats, 4) * 4;
}

/// Rounds floats to the nearest bf16, ties to even; NaN stays NaN. `to` has words(bf16, from.size()) words
/// and does not overlap `from`.
void round_to_bf16(ConstFloatView from, Memory to) noexcept;
/// Converts the first to.size() bf16 of `from` to floats. `to` does not overlap `from`.
void widen_bf16(ConstMemory from, FloatView to) noexcept;

}  // namespace starpipe::model
