// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace starpipe {

/// One line on standard error that says how far some work is. A terminal shows one line that is rewritten in
/// place; a log gets only the lines that are kept.
class ProgressLine {
 public:
  ProgressLine();

  [[nodiscard]] bool on_terminal() const { return terminal_; }
  /// Replaces the line on a terminal; does nothing elsewhere.
  void show(std::string_view text) const;
  /// Replaces the line and ends it: `text` stays, on a terminal and in a log.
  void keep(std::string_view text) const;
  /// Removes the line from a terminal; does nothing elsewhere.
  void clear() const { show(""); }

 private:
  bool terminal_;
};

}  // namespace starpipe
