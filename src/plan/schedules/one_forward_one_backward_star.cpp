// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/one_forward_one_backward_star.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

/// The groups of 1F1B*(T). All T in [shortest, next) have the same groups.
struct Groups {
  std::vector<int> of_stage;
  double shortest = 0;  ///< time of the longest group
  double next = std::numeric_limits<double>::infinity();
};

Groups groups_of(std::span<const ChainStage> chain, double period) {
  Groups groups{.of_stage = std::vector<int>(chain.size())};
  int group = 1;
  double time = 0;
  for (std::size_t s = chain.size(); s-- > 0;) {
    const double longer = time + chain[s].time();
    if (longer > period) {
      groups.next = std::min(groups.next, longer);
      ++group;
      time = chain[s].time();
    } else {
      time = longer;
    }
    groups.shortest = std::max(groups.shortest, time);
    groups.of_stage[s] = group;
  }
  return groups;
}

bool within(std::span<const int> values, std::span<const int> limits) {
  return std::ranges::equal(values, limits, std::ranges::less_equal{});
}

}  // namespace

std::vector<int> stage_groups(std::span<const ChainStage> chain, double period) {
  require_chain(chain);
  for (std::size_t s = 0; s < chain.size(); ++s) {
    if (chain[s].time() <= period) continue;
    throw InputError(
        fmt::format("stage {} takes {}, more than the period of {}", s, chain[s].time(), period));
  }
  return groups_of(chain, period).of_stage;
}

// Phases 2 and 3 of the algorithm at once: F runs through all stages without idle time, and BW of group g
// starts g - 1 periods after the group's last F. `PatternBuilder` turns starts beyond T into shifts.
PeriodicPattern one_forward_one_backward_star(std::span<const ChainStage> chain, double period) {
  const std::vector<int> groups = stage_groups(chain, period);
  PatternBuilder builder(period, 1);
  const int stages = static_cast<int>(chain.size());
  std::vector<double> forward_end;
  double time = 0;
  for (int s = 0; s < stages; ++s) {
    builder.add(s, Pass::F, s, time, 0);
    time += chain[index(s)].forward;
    forward_end.push_back(time);
  }
  for (int s = stages - 1; s >= 0; --s) {
    const int group = groups[index(s)];
    const bool last_of_group = s == stages - 1 || groups[index(s + 1)] != group;
    if (last_of_group) time = forward_end[index(s)] + (group - 1) * period;
    builder.add(s, Pass::BW, s, time, 0);
    time += chain[index(s)].backward;
  }
  return builder.pattern();
}

double min_period(std::span<const ChainStage> chain, std::span<const int> limits) {
  require_limits(chain, limits);
  // A longer period makes no group number larger, and a single group keeps any limits. Invariant: the answer
  // is in [low, high], and `high` keeps the limits.
  double low = longest_stage(chain);
  double high = groups_of(chain, std::numeric_limits<double>::infinity()).shortest;
  for (double period = low; low < high; period = low + (high - low) / 2) {
    const Groups groups = groups_of(chain, period);
    if (within(groups.of_stage, limits)) {
      high = groups.shortest;
    } else {
      low = groups.next;
    }
  }
  return high;
}

PeriodicPattern busiest_worker_pattern(std::span<const ChainStage> chain, std::span<const int> workers) {
  require_chain(chain);
  if (workers.size() != chain.size()) {
    throw InputError(
        fmt::format("there are workers for {} stages, but the chain has {}", workers.size(), chain.size()));
  }
  const int stages = static_cast<int>(chain.size());
  std::vector<double> load;
  for (std::size_t s = 0; s < chain.size(); ++s) {
    if (workers[s] < 0) throw InputError(fmt::format("stage {} is on worker {}", s, workers[s]));
    load.resize(std::max(load.size(), index(workers[s] + 1)), 0.0);
    load[index(workers[s])] += chain[s].time();
  }
  const double period = std::ranges::max(load);
  // In each period a worker runs its operations sequentially from 0 on. A micro-batch waits for the next
  // start of each operation.
  PatternBuilder builder(period, 1);
  std::vector<double> next(load.size(), 0.0);
  double ready = 0;
  const auto add = [&](int s, Pass pass, double length) {
    const int worker = workers[index(s)];
    double& start = next[index(worker)];
    const double periods = std::ceil((ready - start) / period - 1e-9);
    const double time = start + periods * period;
    builder.add(s, pass, worker, time, 0);
    start += length;
    ready = time + length;
  };
  for (int s = 0; s < stages; ++s) add(s, Pass::F, chain[index(s)].forward);
  for (int s = stages - 1; s >= 0; --s) add(s, Pass::BW, chain[index(s)].backward);
  return builder.pattern();
}

}  // namespace starpipe::plan
