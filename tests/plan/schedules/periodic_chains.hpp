// SPDX-License-Identifier: Apache-2.0
// Chains for the tests of the periodic theory, and the measured period of a pattern.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "plan/schedules/best_pattern.hpp"
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

/// True if the pattern is valid by the definition of Pipelined Model Parallelism, section 3.1: repeats it
/// over many periods, more than a micro-batch takes, and checks each operation.
inline bool timetable_works(const PeriodicPattern& pattern, const Chain& chain) {
  int longest = 0;
  for (const auto& op : pattern.operations) longest = std::max(longest, std::abs(op.shift));
  const int periods = std::max(40, 2 * longest / pattern.microbatches + 8);
  struct Run {
    int worker;
    double start;
    double end;
  };
  std::map<Job, Run> runs;
  for (int j = 0; j < periods; ++j) {
    for (const auto& op : pattern.operations) {
      const ChainStage& stage = chain[index(op.stage)];
      const double start = j * pattern.period + op.start;
      const Job job{op.stage, j * pattern.microbatches + op.shift, op.pass};
      const Run run{op.worker, start, start + (op.pass == Pass::F ? stage.forward : stage.backward)};
      if (!runs.emplace(job, run).second) return false;
    }
  }
  const auto ended = [&](const Job& job, double by) {
    const auto found = runs.find(job);
    return found == runs.end() || found->second.end <= by + 1e-6;
  };
  const int last = static_cast<int>(chain.size()) - 1;
  for (const auto& [job, run] : runs) {
    const auto [s, b, pass] = job;
    const Job before = pass == Pass::F ? Job{s - 1, b, Pass::F}
                       : s == last     ? Job{s, b, Pass::F}
                                       : Job{s + 1, b, pass};
    if (!ended(before, run.start)) return false;
    for (const auto& [other, at] : runs) {
      if (other == job || at.worker != run.worker) continue;
      if (at.start < run.end - 1e-6 && run.start < at.end - 1e-6) return false;
    }
  }
  // Micro-batches in the middle have all their operations.
  for (int b = periods / 2 * pattern.microbatches; b < (periods / 2 + 3) * pattern.microbatches; ++b) {
    for (int s = 0; s <= last; ++s) {
      if (!runs.contains({s, b, Pass::F}) || !runs.contains({s, b, Pass::BW})) return false;
    }
  }
  return true;
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
