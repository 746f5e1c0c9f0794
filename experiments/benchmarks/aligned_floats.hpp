// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace starpipe {

/// An array that begins at a cache line, as data of a run do. From other addresses, products in bf16 on AMX
/// are up to a third slower.
class AlignedFloats {
 public:
  explicit AlignedFloats(std::size_t size, float value = 0) : values_(size + line, value), size_(size) {}

  AlignedFloats(AlignedFloats&&) = default;  // a moved vector keeps its memory
  AlignedFloats& operator=(AlignedFloats&&) = default;
  AlignedFloats(const AlignedFloats&) = delete;
  AlignedFloats& operator=(const AlignedFloats&) = delete;
  ~AlignedFloats() = default;

  [[nodiscard]] float* data() {
    void* begin = values_.data();
    std::size_t space = values_.size() * sizeof(float);
    return static_cast<float*>(std::align(line * sizeof(float), size_ * sizeof(float), begin, space));
  }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t line = 16;  // floats

  std::vector<float> values_;
  std::size_t size_;
};

}  // namespace starpipe
