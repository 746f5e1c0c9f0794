// SPDX-License-Identifier: Apache-2.0
// Names that the tests of Unifying Schemes' Table 1 and of its throughput share.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan::table1 {

inline constexpr double tolerance = 1e-9;

/// One unit for F + B; F, B and W of it.
inline const std::vector<Durations> splits = {{1.0 / 3, 2.0 / 3, 0},
                                              {0.5, 0.5, 0},
                                              {0.25, 0.25, 0.5},
                                              {0.75, 0.125, 0.125},
                                              {1.0 / 3, 1.0 / 3, 1.0 / 3}};

inline Costs unit_costs(const Durations& split) {
  Costs costs;
  costs.durations = {split};
  return costs;
}

template <class T>
T max(const std::vector<T>& values) {
  return *std::ranges::max_element(values);
}

/// #{x in [0, count) : x = residue mod modulus}.
inline int congruent(int count, int residue, int modulus) {
  return residue < count ? 1 + (count - 1 - residue) / modulus : 0;
}

inline std::string at(int S, int B, int G, int R) {
  return "S=" + std::to_string(S) + " B=" + std::to_string(B) + " G=" + std::to_string(G) +
         " R=" + std::to_string(R);
}

inline ScheduleRequest request(int W, int B, int S) {
  return {.workers = W, .microbatches = B, .graph = StageGraph::chain(S)};
}

}  // namespace starpipe::plan::table1
