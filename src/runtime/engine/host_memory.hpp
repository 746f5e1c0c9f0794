// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace starpipe::runtime {

/// The host's memory behind a datum. A value that moves and does not change its address.
class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(HostMemory&&) = default;
  HostMemory& operator=(HostMemory&&) = default;
  explicit HostMemory(std::vector<float> values) : values_(std::move(values)), all_(values_) {}
  /// Memory of `size` numbers that nobody reads or writes, for SimGrid: addresses without pages behind them.
  /// Throws std::bad_alloc.
  static HostMemory unused(std::size_t size);

  [[nodiscard]] std::span<float> get() { return all_; }
  [[nodiscard]] std::span<const float> get() const { return all_; }

 private:
  std::vector<float> values_;
  std::shared_ptr<float> mapped_;  // with a function that unmaps it
  std::span<float> all_;
};

}  // namespace starpipe::runtime
