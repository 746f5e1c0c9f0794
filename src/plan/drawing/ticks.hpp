// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "starpipe/plan/explain/recorded_step.hpp"

namespace starpipe::plan::detail {

/// Times as whole numbers. A tick is a power of ten: the largest of which all times of the steps are
/// multiples, at least 1e-9 units (nanoseconds); larger where numbers would pass 2^53, which JavaScript has
/// exactly.
class Ticks {
 public:
  explicit Ticks(std::span<const RecordedStep* const> steps);

  [[nodiscard]] std::int64_t of(double time) const;
  /// Length of a tick in units of time.
  [[nodiscard]] double length() const;

 private:
  int exponent_ = -9;  // a tick is 10^exponent_ units
};

}  // namespace starpipe::plan::detail
