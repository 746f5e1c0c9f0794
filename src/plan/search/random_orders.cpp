// SPDX-License-Identifier: Apache-2.0
#include "plan/search/random_orders.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "starpipe/base/index.hpp"

namespace starpipe::plan::detail {
namespace {

/// For each stage, the memory of one stash of each later stage of its worker.
std::vector<double> later_stashes(const Instance& instance) {
  std::vector<double> later(index(instance.stages), 0);
  for (const auto& stages : instance.stages_of) {
    for (std::size_t k = stages.size(); k-- > 1;) {
      later[index(stages[k - 1])] = later[index(stages[k])] + instance.stash[index(stages[k])];
    }
  }
  return later;
}

double mean_duration(const Instance& instance) {
  double mean = 0;
  for (const auto& times : instance.time) {
    for (const double time : times) mean += time / (3 * instance.stages);
  }
  return mean;
}

/// The jobs that have started, with the times at which the others can.
class PartialRun {
 public:
  explicit PartialRun(const Instance& instance)
      : instance_(instance),
        arrival_(instance.jobs(), never),
        free_at_(index(instance.workers), 0),
        live_(index(instance.workers), 0),
        later_(later_stashes(instance)),
        orders_(index(instance.workers)) {
    for (int b = 0; b < instance.microbatches; ++b) arrival_[instance.job(0, 0, b)] = 0;
    for (auto& of_pass : next_) of_pass.assign(index(instance.stages), 0);
  }

  /// The earliest start of the next job of a stage's pass; `never` if it cannot start yet.
  [[nodiscard]] double earliest(int pass, int stage) const {
    const int b = next_[index(pass)][index(stage)];
    if (b == instance_.microbatches) return never;
    const double arrival = arrival_[instance_.job(pass, stage, b)];
    if (arrival == never) return never;
    const std::size_t s = index(stage);
    const int worker = instance_.worker_of[s];
    const std::size_t w = index(worker);
    if (pass == 0 && !instance_.fits(worker, live_[w] + instance_.stash[s] + later_[s])) return never;
    return std::max(free_at_[w], arrival);
  }

  /// Starts the next job of a stage's pass.
  void start(int pass, int stage) {
    const int b = next_[index(pass)][index(stage)]++;
    const JobId job = instance_.job(pass, stage, b);
    const std::size_t s = index(stage);
    const std::size_t w = index(instance_.worker_of[s]);
    const double end = std::max(free_at_[w], arrival_[job]) + instance_.time_of(job);
    free_at_[w] = end;
    orders_[w].push_back(job);
    if (pass == 0) {
      live_[w] += instance_.stash[s];
      const bool last = stage + 1 == instance_.stages;
      if (last) arrival_[instance_.job(1, stage, b)] = end;
      if (!last) arrival_[instance_.job(0, stage + 1, b)] = end + instance_.forward_lag[s];
    } else if (pass == 1) {
      arrival_[instance_.job(2, stage, b)] = end;
      if (stage > 0) arrival_[instance_.job(1, stage - 1, b)] = end + instance_.backward_lag[s - 1];
    } else {
      live_[w] -= instance_.stash[s];
    }
  }

  Orders take_orders() { return std::move(orders_); }

 private:
  const Instance& instance_;
  std::vector<double> arrival_;           // [JobId], arrival of its inputs
  std::array<std::vector<int>, 3> next_;  // [pass][stage], next micro-batch
  std::vector<double> free_at_;           // [worker]
  std::vector<double> live_;              // [worker], memory in use
  std::vector<double> later_;             // [stage]
  Orders orders_;
};

}  // namespace

Orders random_orders(const Instance& instance, Random& random) {
  PartialRun run(instance);
  const double delay = mean_duration(instance) * random.uniform(0, 3);
  const std::array<double, 3> handicap = {random.uniform(0, delay), random.uniform(0, delay),
                                          random.uniform(0, delay)};
  for (JobId left = instance.jobs(); left > 0; --left) {
    double earliest = never;
    int pass = 0;
    int stage = 0;
    for (int s = 0; s < instance.stages; ++s) {
      for (int d = 0; d < 3; ++d) {
        const double start = run.earliest(d, s);
        if (start == never) continue;
        const double time = start + handicap[index(d)] + random.uniform(0, delay);
        if (time < earliest) earliest = time, pass = d, stage = s;
      }
    }
    run.start(pass, stage);
  }
  return run.take_orders();
}

}  // namespace starpipe::plan::detail
