// SPDX-License-Identifier: Apache-2.0
// Chains for the tests of the periodic theory, and the measured period of a pattern.
#pragma once

#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "plan/schedules/best_pattern.hpp"
#include "plan/schedules/one_forward_one_backward_star.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan::testing {

using Chain = std::vector<ChainStage>;

inline Chain equal_stages(int stages) { return Chain(index(stages)); }

/// Stages with the given U, of which F takes a third.
inline Chain chain_of(const std::vector<double>& times) {
  Chain chain;
  for (const double time : times) chain.push_back({.forward = time / 3, .backward = time - time / 3});
  return chain;
}

inline Chain random_integer_chain(std::mt19937& rng, int stages, int longest) {
  Chain chain;
  for (int s = 0; s < stages; ++s) {
    chain.push_back({.forward = 1.0 + static_cast<double>(rng() % index(longest)),
                     .backward = 1.0 + static_cast<double>(rng() % index(longest))});
  }
  return chain;
}

inline Chain random_chain(std::mt19937& rng, int stages) {
  std::uniform_real_distribution<double> time(0.1, 3);
  Chain chain;
  for (int s = 0; s < stages; ++s) chain.push_back({.forward = time(rng), .backward = time(rng)});
  return chain;
}

inline double sum(const Chain& chain) {
  return std::accumulate(chain.begin(), chain.end(), 0.0,
                         [](double t, const ChainStage& s) { return t + s.time(); });
}

inline Costs costs_of(const Chain& chain) {
  Costs costs;
  costs.durations.clear();
  for (const ChainStage& stage : chain) costs.durations.push_back({stage.forward, stage.backward, 0});
  return costs;
}

inline Timeline run(const PeriodicPattern& pattern, const Chain& chain, int microbatches) {
  const Schedule schedule = unrolled("test", pattern, chain, microbatches);
  EXPECT_EQ(check(schedule).problem, "");
  return simulate(schedule, costs_of(chain));
}

/// T / k by simulation: the growth of the makespan per micro-batch after the start.
inline double growth(const PeriodicPattern& pattern, const Chain& chain) {
  const int before = 60 * pattern.microbatches;
  const int more = 12 * pattern.microbatches;
  return (run(pattern, chain, before + more).makespan - run(pattern, chain, before).makespan) / more;
}

}  // namespace starpipe::plan::testing
