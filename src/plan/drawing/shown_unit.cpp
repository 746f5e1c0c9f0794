// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/drawing/shown_unit.hpp"

#include "base/numbers.hpp"

namespace starpipe::plan {

ShownUnit::ShownUnit(const std::string& unit, double longest) : name_(unit) {
  if (unit != "s" || longest <= 0 || longest >= 1) return;
  name_ = longest < 1e-3 ? "µs" : "ms";
  factor_ = longest < 1e-3 ? 1e6 : 1e3;
}

std::string ShownUnit::number(double time) const { return number_text(time * factor_); }

std::string ShownUnit::text(double time) const {
  return name_.empty() ? number(time) : number(time) + " " + name_;
}

std::string ShownUnit::heading(const std::string& heading) const {
  return name_.empty() ? heading : heading + " (" + name_ + ")";
}

}  // namespace starpipe::plan
