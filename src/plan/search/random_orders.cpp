// SPDX-License-Identifier: Apache-2.0
#include "plan/search/random_orders.hpp"

#include <algorithm>
#include <limits>

#include "starpipe/base/index.hpp"

namespace starpipe::plan::detail {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

}  // namespace

Orders random_orders(const Instance& instance, Random& random) {
  std::vector<double> arrival(instance.jobs(), never);
  for (int b = 0; b < instance.microbatches; ++b) arrival[instance.job(0, 0, b)] = 0;
  std::array<std::vector<int>, 3> next;  // micro-batch, by pass and stage
  for (auto& of_pass : next) of_pass.assign(index(instance.stages), 0);
  std::vector<double> free_at(index(instance.workers), 0);
  std::vector<double> live(index(instance.workers), 0);
  std::vector<double> later(index(instance.stages), 0);  // stashes of later stages on the same worker
  for (const auto& stages : instance.stages_of) {
    for (std::size_t k = stages.size(); k-- > 1;) {
      later[index(stages[k - 1])] = later[index(stages[k])] + instance.stash[index(stages[k])];
    }
  }
  double mean = 0;
  for (const auto& times : instance.time) {
    for (const double time : times) mean += time / (3 * instance.stages);
  }
  const double delay = mean * random.uniform(0, 3);
  const std::array<double, 3> handicap = {random.uniform(0, delay), random.uniform(0, delay),
                                          random.uniform(0, delay)};

  Orders orders(index(instance.workers));
  for (JobId left = instance.jobs(); left > 0; --left) {
    double earliest = never;
    int pass = 0;
    int stage = 0;
    for (int s = 0; s < instance.stages; ++s) {
      const std::size_t w = index(instance.worker_of[index(s)]);
      for (int d = 0; d < 3; ++d) {
        const int b = next[index(d)][index(s)];
        if (b == instance.microbatches || arrival[instance.job(d, s, b)] == never) continue;
        if (d == 0 && !instance.fits(live[w] + instance.stash[index(s)] + later[index(s)])) continue;
        const double start = std::max(free_at[w], arrival[instance.job(d, s, b)]);
        const double time = start + handicap[index(d)] + random.uniform(0, delay);
        if (time < earliest) earliest = time, pass = d, stage = s;
      }
    }
    const int b = next[index(pass)][index(stage)]++;
    const JobId job = instance.job(pass, stage, b);
    const std::size_t w = index(instance.worker_of[index(stage)]);
    const double end = std::max(free_at[w], arrival[job]) + instance.time_of(job);
    free_at[w] = end;
    orders[w].push_back(job);
    const std::size_t s = index(stage);
    if (pass == 0) {
      live[w] += instance.stash[s];
      if (stage + 1 < instance.stages) arrival[instance.job(0, stage + 1, b)] = end + instance.forward_lag[s];
      if (stage + 1 == instance.stages) arrival[instance.job(1, stage, b)] = end;
    } else if (pass == 1) {
      arrival[instance.job(2, stage, b)] = end;
      if (stage > 0) arrival[instance.job(1, stage - 1, b)] = end + instance.backward_lag[s - 1];
    } else {
      live[w] -= instance.stash[s];
    }
  }
  return orders;
}

}  // namespace starpipe::plan::detail
