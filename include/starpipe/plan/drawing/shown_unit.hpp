// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace starpipe::plan {

/// How times are shown: their unit, and the factor from the unit in which they are given. Short times in
/// seconds are shown in ms or µs.
class ShownUnit {
 public:
  /// `unit`: of the times given; empty when it has no name. `longest`: the longest time that is shown.
  ShownUnit(const std::string& unit, double longest);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] double factor() const { return factor_; }
  /// The time's number in this unit, without the unit's name.
  [[nodiscard]] std::string number(double time) const;
  /// Number and unit: "4.5 ms", or "4.5" when the unit has no name.
  [[nodiscard]] std::string text(double time) const;
  /// "busy (ms)", or the heading alone when the unit has no name.
  [[nodiscard]] std::string heading(const std::string& heading) const;

 private:
  std::string name_;
  double factor_ = 1;
};

}  // namespace starpipe::plan
