// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/pattern_builder.hpp"

#include <algorithm>
#include <cmath>

namespace starpipe::plan::detail {

namespace {

constexpr double same = 1e-10;  // starts that differ by less than this part of a period are equal

/// Makes starts equal that differ by rounding only. Otherwise operations that take no time could change
/// places with their neighbours.
void unite_starts(PeriodicPattern& pattern) {
  std::vector<PeriodicOperation*> order;
  order.reserve(pattern.operations.size());
  for (PeriodicOperation& op : pattern.operations) order.push_back(&op);
  std::ranges::sort(order, {}, [](const auto* op) { return op->start; });
  double start = 0;
  for (PeriodicOperation* const op : order) {
    if (op->start > start + same * pattern.period) start = op->start;
    op->start = start;
  }
}

}  // namespace

void PatternBuilder::add(int stage, Pass pass, int worker, double time, int microbatch) {
  const double T = pattern_.period;
  double periods = std::floor(time / T);
  double start = time - periods * T;
  if (start >= T * (1 - same)) {  // by rounding, the start of the next period
    start = 0;
    ++periods;
  }
  pattern_.operations.push_back({.stage = stage,
                                 .pass = pass,
                                 .worker = worker,
                                 .start = start,
                                 .shift = microbatch - pattern_.microbatches * static_cast<int>(periods)});
}

PeriodicPattern PatternBuilder::pattern() const {
  PeriodicPattern pattern = pattern_;
  unite_starts(pattern);
  const PeriodicOperation* first = nullptr;
  for (const PeriodicOperation& op : pattern.operations) {
    if (op.stage != 0 || op.pass != Pass::BW) continue;
    if (first == nullptr || op.start < first->start) first = &op;
  }
  const int shift = first->shift;
  for (PeriodicOperation& op : pattern.operations) op.shift -= shift;
  return pattern;
}

}  // namespace starpipe::plan::detail
