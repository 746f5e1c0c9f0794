// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

namespace starpipe::model {

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
  template <class Floats>
  // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): a view is no span
  requires std::convertible_to<Floats, std::span<Of<float>>> MemoryView(Floats&& floats) {
    const std::span<Of<float>> span = std::forward<Floats>(floats);
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

}  // namespace starpipe::model
