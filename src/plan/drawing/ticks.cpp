// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/ticks.hpp"

#include <algorithm>
#include <cmath>

namespace starpipe::plan::detail {
namespace {

template <class Function>
void for_each_time(std::span<const RecordedStep* const> steps, Function f) {
  for (const RecordedStep* step : steps) {
    for (const JobId id : step->as_run.order()) {
      f(step->timeline.spans[id].start);
      f(step->timeline.spans[id].end);
      f(step->timeline.ready[id]);
      f(step->submitted[id]);
    }
  }
}

}  // namespace

Ticks::Ticks(std::span<const RecordedStep* const> steps) {
  constexpr double most = 1e15;  // below 2^53; differences of two times fit too
  double largest = 0;
  for_each_time(steps, [&](double time) { largest = std::max(largest, std::abs(time)); });
  while (largest > most * length()) ++exponent_;
  int zeros = 15;  // decimal zeros at the end of all times
  for_each_time(steps, [&](double time) {
    std::int64_t value = of(time);
    if (value == 0) return;
    int own = 0;
    for (; own < zeros && value % 10 == 0; ++own) value /= 10;
    zeros = own;
  });
  exponent_ += zeros;
}

std::int64_t Ticks::of(double time) const {
  // Powers of ten up to 10^22 are exact, those below 1 are not.
  return std::llround(exponent_ < 0 ? time * std::pow(10.0, -exponent_) : time / std::pow(10.0, exponent_));
}

double Ticks::length() const { return std::pow(10.0, exponent_); }

}  // namespace starpipe::plan::detail
