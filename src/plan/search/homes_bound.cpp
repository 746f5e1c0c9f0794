// SPDX-License-Identifier: Apache-2.0
#include "plan/search/homes_bound.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

#include "starpipe/base/index.hpp"

// docs/search.md, "The lower bound", defines the names in `backquotes` and proves bounds 8 and 9.
namespace starpipe::plan {

double CopyRate::memory_in(double time) const {
  if (memory == infinity) return infinity;
  return memory * std::max(0.0, time);
}

CopyRate copy_rate_of(const Instance& instance, const Chain& chain, int worker) {
  CopyRate rate;
  if (instance.copy_time.empty()) return rate;
  const auto& [F, B, W] = instance.time;
  for (const int stage : instance.stages_of[index(worker)]) {
    const std::size_t s = index(stage);
    rate.first_copy = std::min(rate.first_copy, chain.forward_start[s] + F[s]);
    rate.after_copies = std::min(rate.after_copies, B[s] + chain.after_backward[s]);
    if (instance.stash[s] == 0) continue;
    const double time = instance.copy_time[s];
    rate.memory = std::max(rate.memory, time > 0 ? instance.stash[s] / time : infinity);
  }
  return rate;
}

namespace {

/// A linear program: the largest `gain` x u over all u >= 0 with `rows[i]` x u <= `limits[i]` for each i. No
/// limit is negative, so u = 0 is allowed. Numbers should be near 1: those below 1e-11 count as 0.
struct LinearProgram {
  std::vector<std::vector<double>> rows = {};
  std::vector<double> limits = {};
  std::vector<double> gain = {};
};

constexpr double near_zero = 1e-11;

/// Exchanges a variable that is 0 (`column`) and one that is not (`row`). Variables beyond those of u are the
/// distances of the rows from their limits.
void pivot(LinearProgram& program, std::size_t row, std::size_t column) {
  std::vector<double>& pivot_row = program.rows[row];
  const double by = pivot_row[column];
  pivot_row[column] = 1;
  for (double& value : pivot_row) value /= by;
  program.limits[row] /= by;
  const auto subtract = [&](std::vector<double>& values) {
    const double factor = std::exchange(values[column], 0);
    if (factor == 0) return 0.0;
    for (std::size_t c = 0; c < values.size(); ++c) values[c] -= factor * pivot_row[c];
    return factor;
  };
  for (std::size_t r = 0; r < program.rows.size(); ++r) {
    if (r != row) program.limits[r] -= subtract(program.rows[r]) * program.limits[row];
  }
  subtract(program.gain);
}

/// Returns the best u by the simplex method with Bland's rule, which ends always. Stops after `max_pivots`
/// with the best u so far. Rounding may exceed limits by a little.
std::vector<double> maximized(LinearProgram program, int max_pivots = 10'000) {
  const std::size_t count = program.gain.size();
  std::vector<std::size_t> at_zero(count);               // variable of each column
  std::vector<std::size_t> in_row(program.rows.size());  // variable of each row
  std::iota(at_zero.begin(), at_zero.end(), std::size_t{0});
  std::iota(in_row.begin(), in_row.end(), count);
  for (int pivots = 0; pivots < max_pivots; ++pivots) {
    // Bland's rule: of the variables that may enter, and of those that may leave, the first.
    std::size_t column = count;
    for (std::size_t c = 0; c < count; ++c) {
      if (program.gain[c] > near_zero && (column == count || at_zero[c] < at_zero[column])) column = c;
    }
    if (column == count) break;
    std::size_t row = program.rows.size();
    double least = 0;
    for (std::size_t r = 0; r < program.rows.size(); ++r) {
      if (program.rows[r][column] <= near_zero) continue;
      const double ratio = program.limits[r] / program.rows[r][column];
      if (row == program.rows.size() || ratio < least || (ratio == least && in_row[r] < in_row[row])) {
        row = r;
        least = ratio;
      }
    }
    if (row == program.rows.size()) break;  // no limit: not for bounded programs, but for rounding
    pivot(program, row, column);
    std::swap(at_zero[column], in_row[row]);
  }
  std::vector<double> best(count, 0);
  for (std::size_t r = 0; r < program.rows.size(); ++r) {
    if (in_row[r] < count) best[in_row[r]] = program.limits[r];
  }
  return best;
}

/// What the two ways to save area mean for the makespan, if all stashes of a stage go this way.
struct StageWays {
  std::size_t worker = 0;   ///< index in its group
  double remade_saves = 0;  ///< of the area, divided by `K`
  double remade_takes = 0;  ///< of the worker's time
  double copied_saves = 0;
  double copied_takes = 0;  ///< of the time of each of the worker's channels
  double passing = 0;       ///< of the time of each direction of the shared link
};

/// The four kinds of conditions of bound 9 for workers that share a link. Each says that the makespan is at
/// least a number, minus what the ways of the stages save, or plus what they take.
struct LinkGroup {
  std::vector<double> area = {};     ///< by worker
  std::vector<double> work = {};     ///< by worker
  std::vector<double> channel = {};  ///< by worker
  double shared = 0;
  std::vector<StageWays> stages = {};

  // Each condition has a weight. Numbers of the weights:
  [[nodiscard]] static std::size_t of_area(std::size_t worker) { return 3 * worker; }
  [[nodiscard]] static std::size_t of_work(std::size_t worker) { return 3 * worker + 1; }
  [[nodiscard]] static std::size_t of_channel(std::size_t worker) { return 3 * worker + 2; }
  [[nodiscard]] std::size_t of_shared() const { return 3 * area.size(); }
};

/// Time before the first copy of one direction and after its last, where some stash is copied, and at least
/// where none is.
struct Surroundings {
  double with_copies = 0;
  double without = 0;
};

/// `after_latency`: true for a shared link, whose bytes pass after the latency of a copy; false for a
/// worker's channels.
Surroundings surroundings_of(const Instance& instance, const Chain& chain, const std::vector<int>& stages,
                             bool after_latency) {
  double after_f = infinity, after_latency_of_o = infinity, after_o = infinity;
  double before_end = infinity, before_l = infinity;
  for (const int stage : stages) {
    const std::size_t s = index(stage);
    const double latency = after_latency ? instance.copy_time[s] - instance.copy_passing[s] : 0;
    const double forward_end = chain.forward_start[s] + instance.time[0][s];
    const double rest = instance.time[1][s] + chain.after_backward[s];
    after_f = std::min(after_f, forward_end);
    after_latency_of_o = std::min(after_latency_of_o, forward_end + latency);
    after_o = std::min(after_o, forward_end + instance.copy_time[s] + latency);
    before_end = std::min(before_end, rest);
    before_l = std::min(before_l, instance.copy_time[s] + rest);
  }
  return {.with_copies = std::max(after_latency_of_o + before_l, after_o + before_end),
          .without = after_f + before_end};
}

/// Adds a worker's conditions and the ways of its stages.
void add_worker(const Instance& instance, const Chain& chain, const Load& load, int worker,
                bool may_recompute, double known, LinkGroup& group) {
  const auto& [F, B, W] = instance.time;
  const double n = instance.microbatches;
  const double limit = std::min(load.limit, n * load.stash);
  const auto& stages = instance.stages_of[index(worker)];
  const Surroundings around = surroundings_of(instance, chain, stages, false);
  // No more than `with_copies - without`, whatever is copied; nothing where nothing is.
  const double part = (around.with_copies - around.without) / static_cast<double>(stages.size());
  double area = ramps_of(load, limit, known).unused / limit;
  for (const int stage : stages) {
    const std::size_t s = index(stage);
    const double life = chain.backward_start[s] + B[s] - chain.forward_start[s];
    const double of_all = n * instance.stash[s] / limit;
    const double copy = instance.copy_time[s];
    area += of_all * (life + load.min_weights);
    StageWays ways{.worker = group.area.size()};
    if (may_recompute) {
      ways.remade_saves = of_all * std::max(0.0, life - instance.remaking[s] - B[s]);
      ways.remade_takes = n * instance.remaking[s];
    }
    ways.copied_saves = of_all * std::max(0.0, life - F[s] - B[s] - 2 * copy);
    ways.copied_takes = n * copy + part;
    ways.passing = n * instance.copy_passing[s];
    group.stages.push_back(ways);
  }
  group.area.push_back(load.head + load.after_backward - load.min_weights + area);
  group.work.push_back(load.head + n * (load.forward + load.backward + load.weights) +
                       idle_after_backward(load, n));
  group.channel.push_back(around.without);
}

/// Returns the linear program whose solution is the best weights. A further variable for each stage is at
/// least what its better way changes. All times are divided by `unit`.
LinearProgram program_of(const LinkGroup& group, double unit) {
  const std::size_t weights = group.of_shared() + 1;
  const std::size_t variables = weights + group.stages.size();
  LinearProgram program;
  program.gain.assign(variables, -1);
  for (std::size_t w = 0; w < group.area.size(); ++w) {
    program.gain[group.of_area(w)] = group.area[w] / unit;
    program.gain[group.of_work(w)] = group.work[w] / unit;
    program.gain[group.of_channel(w)] = group.channel[w] / unit;
  }
  program.gain[group.of_shared()] = group.shared / unit;
  auto& sum = program.rows.emplace_back(variables, 0.0);
  std::fill_n(sum.begin(), weights, 1.0);
  program.limits.push_back(1);
  for (std::size_t i = 0; i < group.stages.size(); ++i) {
    const StageWays& ways = group.stages[i];
    const auto add = [&](double saves, std::size_t number, double takes, double passing) {
      if (saves == 0) return;
      auto& row = program.rows.emplace_back(variables, 0.0);
      row[group.of_area(ways.worker)] = saves / unit;
      row[number] = -takes / unit;
      row[group.of_shared()] = -passing / unit;
      row[weights + i] = -1;
      program.limits.push_back(0);
    };
    add(ways.remade_saves, group.of_work(ways.worker), ways.remade_takes, 0);
    add(ways.copied_saves, group.of_channel(ways.worker), ways.copied_takes, ways.passing);
  }
  return program;
}

/// Returns the makespan that the weights prove. Any weights from 0 on prove one, so a program that was not
/// solved exactly cannot make the bound wrong.
double proved_by(const LinkGroup& group, std::vector<double> weights) {
  weights.resize(group.of_shared() + 1);
  double sum = 0;
  for (double& weight : weights) sum += weight = std::isfinite(weight) ? std::max(0.0, weight) : 0;
  if (sum <= 0) return 0;
  double bound = weights[group.of_shared()] * group.shared;
  for (std::size_t w = 0; w < group.area.size(); ++w) {
    bound += weights[group.of_area(w)] * group.area[w] + weights[group.of_work(w)] * group.work[w] +
             weights[group.of_channel(w)] * group.channel[w];
  }
  for (const StageWays& ways : group.stages) {
    const double area = weights[group.of_area(ways.worker)];
    const double remade = area * ways.remade_saves - weights[group.of_work(ways.worker)] * ways.remade_takes;
    const double copied = area * ways.copied_saves -
                          weights[group.of_channel(ways.worker)] * ways.copied_takes -
                          weights[group.of_shared()] * ways.passing;
    bound -= std::max({0.0, remade, copied});
  }
  return bound / sum;
}

}  // namespace

double recomputation_bound(const Instance& instance, const Chain& chain, const Load& load, int worker,
                           double known) {
  if (load.stash == 0) return 0;  // then there is no area, and bound 2 has the work
  struct Saving {
    double area;  // that recomputation of all micro-batches saves
    double time;  // that it takes
  };
  std::vector<Saving> savings;
  const double limit = std::min(load.limit, instance.microbatches * load.stash);
  double area = ramps_of(load, limit, known).unused;
  for (const int stage : instance.stages_of[index(worker)]) {
    const std::size_t s = index(stage);
    const double remaking = instance.remaking[s];
    const double life = chain.backward_start[s] + instance.time[1][s] - chain.forward_start[s];
    const double of_all = instance.microbatches * instance.stash[s];
    area += of_all * (life + load.min_weights);
    savings.push_back(
        {of_all * std::max(0.0, life - remaking - instance.time[1][s]), instance.microbatches * remaking});
  }
  std::ranges::sort(savings, std::greater<>(), [](const Saving& saving) {
    return saving.time > 0 ? saving.area / saving.time : infinity;
  });
  double work = load.head + instance.microbatches * (load.forward + load.backward + load.weights) +
                idle_after_backward(load, instance.microbatches);
  const auto by_area = [&] { return load.head + load.after_backward - load.min_weights + area / limit; };
  for (const Saving& saving : savings) {
    if (work >= by_area()) break;
    // The share of this stage's micro-batches at which both bounds are equal.
    const double slope = saving.time + saving.area / limit;
    const double share = slope > 0 ? std::min(1.0, (by_area() - work) / slope) : 1.0;
    work += share * saving.time;
    area -= share * saving.area;
  }
  return std::max(work, by_area());
}

double ends_bound(const Load& load, double microbatches, const CopyRate& rate,
                  std::optional<double> remaking) {
  const double possible = std::min(load.first_backward - load.head, microbatches * load.forward);
  const double memory = load.limit + rate.memory_in(load.first_backward - rate.first_copy);
  double early = std::min(possible, time_for(memory, load.forward_rate));
  // Other F may run early if they are computed again, which takes as long as they have saved, or less.
  if (remaking) early += std::max(0.0, 1 - *remaking) * (possible - early);
  return load.first_backward - early + microbatches * (load.forward + load.backward + load.weights) +
         idle_after_backward(load, microbatches);
}

double copies_bound(const Instance& instance, const Chain& chain, const std::vector<Load>& loads,
                    bool may_recompute, double known) {
  constexpr std::size_t max_stages = 64;  // of one program: part of a group shares the link, too
  for (int first = 0; first < instance.workers;) {
    const int end = std::min(instance.workers, (first / instance.link_workers + 1) * instance.link_workers);
    LinkGroup group;
    std::vector<int> stages;
    int next = first;
    for (; next < end; ++next) {
      const auto& of_worker = instance.stages_of[index(next)];
      if (next > first && stages.size() + of_worker.size() > max_stages) break;
      stages.insert(stages.end(), of_worker.begin(), of_worker.end());
      const Load& load = loads[index(next)];
      if (load.stash > 0 && load.limit > 0 && load.limit < infinity)
        add_worker(instance, chain, load, next, may_recompute, known, group);
    }
    first = next;
    // Without copies and R, `known` meets all conditions.
    if (std::ranges::all_of(group.area, [&](double area) { return area <= known; })) continue;
    const Surroundings around = surroundings_of(instance, chain, stages, true);
    group.shared = around.without;
    for (StageWays& ways : group.stages)
      ways.passing += (around.with_copies - around.without) / static_cast<double>(stages.size());
    known = std::max(known, proved_by(group, maximized(program_of(group, known))));
  }
  return known;
}

}  // namespace starpipe::plan
