// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace starpipe::plan {

/// A linear program: the largest `gain` x u over all u >= 0 with `rows[i]` x u <= `limits[i]` for each i. No
/// limit is negative, so u = 0 is allowed. Numbers should be near 1: those below 1e-11 count as 0.
struct LinearProgram {
  std::vector<std::vector<double>> rows = {};
  std::vector<double> limits = {};
  std::vector<double> gain = {};
};

/// Returns the best u by the simplex method with Bland's rule, which ends always. Stops after `max_pivots`
/// with the best u so far. Rounding may exceed limits by a little.
std::vector<double> maximized(LinearProgram program, int max_pivots = 10'000);

}  // namespace starpipe::plan
