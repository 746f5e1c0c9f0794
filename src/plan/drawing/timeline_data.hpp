// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include "plan/drawing/page.hpp"
#include "plan/explain/recorded_step.hpp"

namespace starpipe::plan {

/// Whole numbers as short text: the variable-length quantities of source maps. Each number is a row of digits
/// to base 32, the lowest first; a digit of which more follow has 32 added, and is a character of base64. The
/// lowest bit of the number is its sign. `column` in viewer/src/columns.ts reads it.
class Column {
 public:
  void add(std::int64_t value);
  /// Adds the difference to the number of the call before, at first to 0: short where numbers lie close.
  void add_difference(std::int64_t value);
  /// `add_difference` counts from 0 again.
  void restart() { last_ = 0; }
  [[nodiscard]] std::string take() && { return std::move(text_); }

 private:
  std::string text_;
  std::int64_t last_ = 0;
};

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

/// Returns a step as the page reads it (viewer/src/data.ts): figures; and as columns the jobs by worker, idle
/// times by worker, the critical path, memory over time by worker, and the traffic between workers.
nlohmann::ordered_json timeline_data(const PageTimeline& timeline, const Costs& costs, const Ticks& ticks);

}  // namespace starpipe::plan
