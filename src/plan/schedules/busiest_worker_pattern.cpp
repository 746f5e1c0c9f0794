// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/busiest_worker_pattern.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "plan/schedules/pattern_builder.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

PeriodicPattern busiest_worker_pattern(std::span<const ChainStage> chain, std::span<const int> workers) {
  detail::require_chain(chain);
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
  // In each period a worker runs its operations one after the other from 0 on. A micro-batch waits for the
  // next start of each operation.
  detail::PatternBuilder builder(period, 1);
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
