// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/pattern.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedules/orders.hpp"

namespace starpipe::plan {
namespace {

/// A pattern as a table: for each pass of each stage and each r < k, the operation that runs micro-batches i
/// with i mod k = r. A step is a pass of a stage, counted along a micro-batch's way: F of all stages, then BW
/// in reverse.
class PatternTable {
 public:
  PatternTable(const PeriodicPattern& pattern, std::span<const ChainStage> chain)
      : pattern_(pattern), chain_(chain), cells_(chain.size() * 2 * index(pattern.microbatches), nullptr) {
    const int k = pattern.microbatches;
    for (const PeriodicOperation& op : pattern.operations) {
      cells_[index(step_of(op) * k + (op.shift % k + k) % k)] = &op;
      workers_ = std::max(workers_, op.worker + 1);
    }
  }

  [[nodiscard]] int stages() const { return static_cast<int>(chain_.size()); }
  /// Returns the number of steps.
  [[nodiscard]] int steps() const { return 2 * stages(); }
  [[nodiscard]] int workers() const { return workers_; }
  [[nodiscard]] Pass pass(int step) const { return step < stages() ? Pass::F : Pass::BW; }
  [[nodiscard]] int stage(int step) const { return step < stages() ? step : steps() - 1 - step; }
  [[nodiscard]] int worker(int stage) const { return at(stage, 0).worker; }
  [[nodiscard]] double length(int step) const {
    const ChainStage& of = chain_[index(stage(step))];
    return step < stages() ? of.forward : of.backward;
  }

  [[nodiscard]] const PeriodicOperation& at(int step, int microbatch) const {
    return *cells_[index(step * pattern_.microbatches + microbatch % pattern_.microbatches)];
  }
  [[nodiscard]] double start(int step, int microbatch) const {
    const PeriodicOperation& op = at(step, microbatch);
    const int repetition = (microbatch - op.shift) / pattern_.microbatches;
    return op.start + repetition * pattern_.period;
  }

  /// Sort key for the order of a worker: at equal starts, operations that take no time come first.
  [[nodiscard]] auto key(const PeriodicOperation& op) const {
    const int step = step_of(op);
    return std::tuple(op.start, op.start + length(step), op.shift, step);
  }

 private:
  [[nodiscard]] int step_of(const PeriodicOperation& op) const {
    return op.pass == Pass::F ? op.stage : steps() - 1 - op.stage;
  }

  const PeriodicPattern& pattern_;
  std::span<const ChainStage> chain_;
  std::vector<const PeriodicOperation*> cells_;  // [step][micro-batch mod k]
  int workers_ = 0;
};

}  // namespace

std::vector<int> concurrent_activations(const PeriodicPattern& pattern, std::span<const ChainStage> chain) {
  const PatternTable table(pattern, chain);
  const int k = pattern.microbatches;
  std::vector<int> max(chain.size(), 0);
  for (int s = 0; s < table.stages(); ++s) {
    const int backward_step = table.steps() - 1 - s;
    for (int r = 0; r < k; ++r) {
      // Stashes that are live after this F: for each c, the number of micro-batches c + k j that F has run,
      // minus the number that BW has run.
      const auto now = table.key(table.at(s, r));
      int live = 0;
      for (int c = 0; c < k; ++c) {
        const PeriodicOperation& forward = table.at(s, c);
        const PeriodicOperation& backward = table.at(backward_step, c);
        live += (forward.shift - backward.shift) / k + static_cast<int>(table.key(forward) <= now) -
                static_cast<int>(table.key(backward) < now);
      }
      max[index(s)] = std::max(max[index(s)], live);
    }
  }
  return max;
}

std::vector<double> pattern_memory(const PeriodicPattern& pattern, std::span<const ChainStage> chain) {
  const std::vector<int> live = concurrent_activations(pattern, chain);
  const PatternTable table(pattern, chain);
  std::vector<double> memory(index(table.workers()), 0.0);
  for (int s = 0; s < table.stages(); ++s) {
    memory[index(table.worker(s))] += chain[index(s)].weights + live[index(s)] * chain[index(s)].activation;
  }
  return memory;
}

Schedule unrolled(std::string_view name, const PeriodicPattern& pattern, std::span<const ChainStage> chain,
                  int microbatches) {
  const PatternTable table(pattern, chain);
  struct UnrolledJob {
    double start;
    double end;
    int step;
    int microbatch;
  };
  std::vector<UnrolledJob> jobs;
  jobs.reserve(index(microbatches) * index(table.steps()));
  for (int b = 0; b < microbatches; ++b) {
    double ready = -std::numeric_limits<double>::infinity();
    for (int step = 0; step < table.steps(); ++step) {
      // Rounding of times must not put a pass before the pass that it waits for.
      const double start = std::max(table.start(step, b), ready);
      ready = start + table.length(step);
      jobs.push_back({start, ready, step, b});
    }
  }
  std::ranges::sort(jobs, {},
                    [](const UnrolledJob& j) { return std::tuple(j.start, j.end, j.microbatch, j.step); });
  std::vector<std::vector<Job>> rows(index(table.workers()));
  for (const UnrolledJob& job : jobs) {
    const int stage = table.stage(job.step);
    rows[index(table.worker(stage))].push_back({stage, job.microbatch, table.pass(job.step)});
  }
  return in_order(std::string(name), StageGraph::chain(table.stages()), microbatches, rows);
}

PeriodicPattern thinned(const PeriodicPattern& pattern, int k) {
  PatternBuilder builder((k + 1) * pattern.period, k);
  for (const PeriodicOperation& op : pattern.operations) {
    for (int b = 0; b < k; ++b) {
      builder.add(op.stage, op.pass, op.worker, op.start + (b - op.shift) * pattern.period, b);
    }
  }
  return builder.pattern();
}

std::vector<int> stash_limits(std::span<const ChainStage> chain, double memory) {
  require_chain(chain);
  constexpr double max = std::numeric_limits<int>::max();
  std::vector<int> limits;
  for (std::size_t s = 0; s < chain.size(); ++s) {
    const double left = memory - chain[s].weights;
    const double stashes = chain[s].activation > 0 ? left / chain[s].activation * (1 + 1e-12)
                           : left < 0              ? 0
                                                   : max;
    if (!(stashes >= 1)) {
      throw InputError(
          fmt::format("stage {} needs {} for its weights and one stash, more than the memory of {}", s,
                      chain[s].weights + chain[s].activation, memory));
    }
    limits.push_back(static_cast<int>(std::min(stashes, max)));
  }
  return limits;
}

void require_chain(std::span<const ChainStage> chain) {
  if (chain.empty()) throw InputError("a chain needs at least one stage");
  double total = 0;
  for (std::size_t s = 0; s < chain.size(); ++s) {
    for (const double value : {chain[s].forward, chain[s].backward, chain[s].weights, chain[s].activation}) {
      if (value >= 0 && std::isfinite(value)) continue;
      throw InputError(fmt::format("stage {}: {} is negative or not finite", s, value));
    }
    total += chain[s].time();
  }
  if (!(total > 0)) throw InputError("a chain that takes no time has no period");
}

void require_limits(std::span<const ChainStage> chain, std::span<const int> limits) {
  require_chain(chain);
  if (limits.size() != chain.size()) {
    throw InputError(fmt::format("there are {} limits for {} stages", limits.size(), chain.size()));
  }
  for (std::size_t s = 0; s < limits.size(); ++s) {
    if (limits[s] < 1)
      throw InputError(fmt::format("stage {}: a limit of {} stashes, need at least 1", s, limits[s]));
  }
}

double longest_stage(std::span<const ChainStage> chain) {
  return std::ranges::max_element(chain, {}, &ChainStage::time)->time();
}

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

PatternBuilder::PatternBuilder(double period, int microbatches)
    : pattern_{.period = period, .microbatches = microbatches, .operations = {}} {
  if (!std::isfinite(period))
    throw InputError(fmt::format("the period must be positive and finite, not {}", period));
}

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
