// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace starpipe::plan::detail {

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

}  // namespace starpipe::plan::detail
