// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

/// Seeded random stage graphs, schedules and costs. Every number is a small multiple of 1/4, so sums
/// are exact and ties are real ties.
namespace starpipe::plan::testing {

using Random = std::mt19937_64;

/// A schedule and the costs of its jobs.
struct Case {
  Schedule schedule;
  Costs costs;
};

inline int between(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

inline bool chance(Random& random, double probability) {
  return std::bernoulli_distribution(probability)(random);
}

inline std::vector<int> permutation(Random& random, int size) {
  std::vector<int> result(index(size));
  std::iota(result.begin(), result.end(), 0);
  std::shuffle(result.begin(), result.end(), random);
  return result;
}

/// A chain, a tree, or a DAG with one sink; the stage numbers need not follow the edges.
inline StageGraph random_graph(Random& random, int stages) {
  const int kind = between(random, 0, 2);
  if (kind == 0) return StageGraph::chain(stages);
  const std::vector<int> label = chance(random, 0.5) ? permutation(random, stages) : [&] {
    std::vector<int> identity(index(stages));
    std::iota(identity.begin(), identity.end(), 0);
    return identity;
  }();
  std::vector<std::pair<int, int>> edges;
  for (int from = 0; from + 1 < stages; ++from) {
    const int first = between(random, from + 1, stages - 1);
    for (int to = from + 1; to < stages; ++to) {
      if (to == first || (kind == 2 && chance(random, 0.25))) {
        edges.emplace_back(label[index(from)], label[index(to)]);
      }
    }
  }
  return {stages, edges};
}

struct Options {
  int max_stages = 6;
  int max_microbatches = 6;
  int max_workers = 5;
  /// Place all passes of a stage and micro-batch on one worker.
  bool one_worker_a_stash = false;
  /// Copy some stashes to host, disk or another worker. These schedules place all passes of a stash on one
  /// worker, and can only be ordered.
  bool copies = false;
  /// Share of the schedules whose priority follows the data dependencies.
  double sound_priority = 0.7;
};

enum class PlacementKind { by_stage, by_microbatch, by_stash, by_job };

/// A spec with tabulated random w, n and homes, ordered and without limits.
inline ScheduleSpec random_spec(Random& random, const Options& options = {}) {
  ScheduleSpec spec;
  spec.name = "random";
  const int stages = between(random, 1, options.max_stages);
  const int microbatches = between(random, 1, options.max_microbatches);
  const int workers = between(random, 1, options.max_workers);
  spec.graph = random_graph(random, stages);
  spec.microbatches = microbatches;
  spec.workers = workers;

  const int split = between(random, 0, 2);
  std::vector<bool> splits(index(stages * microbatches));
  for (auto&& s : splits) s = split == 1 || (split == 2 && chance(random, 0.5));
  if (split != 0) {
    spec.split_backward = [splits, stages](int s, int b) { return splits[index(b * stages + s)]; };
  }

  const bool copies = options.copies && chance(random, 0.25);
  const int remade = between(random, 0, 5);  // no stash, some or all
  std::vector<Home> homes(splits.size());
  for (Home& home : homes)
    home = remade == 0 || (remade == 1 && chance(random, 0.5)) ? Home::none : Home::worker;
  if (copies) {
    for (Home& home : homes) {
      if (!chance(random, 0.6)) continue;
      const int kind = between(random, 0, 3);
      home = kind == 0 ? Home::host : kind == 1 ? Home::disk : Home::at(between(random, 0, workers - 1));
    }
  }
  if (remade < 2 || copies) {
    spec.home = [homes, stages](int s, int b) { return homes[index(b * stages + s)]; };
    spec.late_recomputation = chance(random, 0.3);
  }

  constexpr int passes = static_cast<int>(pass_count);
  const auto slot = [stages](const Job& j) {
    return index((j.microbatch * stages + j.stage) * passes + static_cast<int>(j.pass));
  };
  const auto kind =
      static_cast<PlacementKind>(between(random, 0, options.one_worker_a_stash || copies ? 2 : 3));
  const int weights = between(random, 0, 2);
  std::vector<Placement> placement(index(stages * microbatches * passes));
  std::vector<int> of_stage(index(stages));
  std::vector<int> of_microbatch(index(microbatches));
  std::vector<int> holder(index(stages));
  for (int& w : of_stage) w = between(random, 0, workers - 1);
  for (int& w : of_microbatch) w = between(random, 0, workers - 1);
  for (int& w : holder) w = between(random, 0, workers - 1);
  for (int b = 0; b < microbatches; ++b) {
    for (int s = 0; s < stages; ++s) {
      const int of_stash = between(random, 0, workers - 1);
      for (int d = 0; d < passes; ++d) {
        Placement& p = placement[slot({s, b, static_cast<Pass>(d)})];
        switch (kind) {
          case PlacementKind::by_stage:
            p.compute = of_stage[index(s)];
            break;
          case PlacementKind::by_microbatch:
            p.compute = of_microbatch[index(b)];
            break;
          case PlacementKind::by_stash:
            p.compute = of_stash;
            break;
          case PlacementKind::by_job:
            p.compute = between(random, 0, workers - 1);
            break;
        }
        // The weights are on the job's worker (replicas), on one holder a stage (sharded), or on a holder
        // that depends on the micro-batch.
        p.weights = weights == 0   ? p.compute
                    : weights == 1 ? holder[index(s)]
                                   : (holder[index(s)] + b % 2) % workers;
      }
    }
  }
  spec.placement = [placement, slot](const Job& j) { return placement[slot(j)]; };

  std::vector<std::int64_t> priority(placement.size());
  const int range = chance(random, 0.5) ? 3 : 1000;
  for (auto& n : priority) n = between(random, -range, range);
  spec.priority = [priority, slot](const Job& j) { return priority[slot(j)]; };

  if (chance(random, options.sound_priority)) {
    // A random order that respects the data dependencies, so it never deadlocks.
    const Schedule jobs(spec);
    std::vector<int> waits(jobs.id_count());
    std::vector<JobId> free;
    for (const JobId id : jobs.order()) {
      waits[id] = jobs.pred_count(id);
      jobs.for_each_before_by_n(id, [&](JobId) { --waits[id]; });  // n is chosen here
      if (waits[id] == 0) free.push_back(id);
    }
    const bool depth_first = chance(random, 0.5);
    for (std::int64_t n = 0; !free.empty(); ++n) {
      const auto last = static_cast<int>(free.size()) - 1;
      const int low = depth_first ? std::max(0, last - 2) : 0;
      std::swap(free[index(between(random, low, last))], free.back());
      const JobId id = free.back();
      free.pop_back();
      priority[slot(jobs.job(id))] = n;
      std::vector<JobId> after;
      jobs.for_each_succ(id, [&](JobId next) { after.push_back(next); });
      jobs.for_each_after_by_n(id, [&](JobId) { after.pop_back(); });  // they come last
      for (const JobId next : after) {
        if (--waits[next] == 0) free.push_back(next);
      }
    }
    spec.priority = [priority, slot](const Job& j) { return priority[slot(j)]; };
  }
  return spec;
}

/// Durations and transfer costs; some zero, some equal.
inline Costs random_costs(Random& random, int stages) {
  const auto quarter = [&random](int high) { return between(random, 0, high) / 4.0; };
  Costs costs;
  const auto duration = [&](int kind) -> Durations {
    switch (kind) {
      case 0:
        return {1, 1, 1};
      case 1:
        return {quarter(3), quarter(3), quarter(3)};
      default:
        return {0.25 + quarter(12), 0.25 + quarter(12), 0.25 + quarter(12)};
    }
  };
  const int kind = between(random, 0, 2);
  costs.durations.clear();
  const int count = chance(random, 0.5) ? 1 : stages;
  for (int s = 0; s < count; ++s) costs.durations.push_back(duration(kind));
  const auto bytes = [&] { return static_cast<std::uint64_t>(between(random, 0, 5)); };
  costs.sizes.clear();
  const int size_count = chance(random, 0.5) ? 1 : stages;
  for (int s = 0; s < size_count; ++s) costs.sizes.push_back({bytes(), bytes(), bytes(), bytes(), bytes()});
  const double alpha = chance(random, 0.6) ? quarter(4) : 0;
  const double beta = chance(random, 0.6) ? quarter(2) : 0;
  costs.links = Link{.alpha = alpha, .beta = beta};
  costs.prefetch = chance(random, 0.6);
  costs.host = HomeLink{.link = {.alpha = quarter(4), .beta = quarter(2)}};
  costs.disk = HomeLink{.link = {.alpha = quarter(8)}};
  if (chance(random, 0.5)) costs.peer = HomeLink{.link = {.alpha = quarter(4), .beta = quarter(2)}};
  return costs;
}

/// Links of one to three levels, each shared in one of the ways.
inline Links random_links(Random& random, const std::vector<Sharing>& ways) {
  std::vector<LinkLevel> levels;
  int workers = 1;
  for (int l = between(random, 1, 3); l > 0; --l) {
    workers *= 2;
    levels.push_back({.workers = workers,
                      .link = {.alpha = between(random, 0, 4) / 4.0, .beta = between(random, 0, 4) / 4.0},
                      .sharing = ways[index(between(random, 0, static_cast<int>(ways.size()) - 1))]});
  }
  return Links(std::move(levels));
}

/// Limits that `check` accepts: between c and c + 3, where c is the largest number of stages of one
/// micro-batch on the worker.
inline std::vector<int> random_limits(Random& random, const Schedule& schedule) {
  std::vector<int> limits;
  for (int w = 0; w < schedule.workers(); ++w) {
    int max = 0;
    for (int b = 0; b < schedule.microbatches(); ++b) {
      int here = 0;
      for (int s = 0; s < schedule.stages(); ++s) here += schedule.compute(schedule.stash_maker(s, b)) == w;
      max = std::max(max, here);
    }
    limits.push_back(std::max(1, max + between(random, 0, 3)));
  }
  return limits;
}

/// A random schedule of the discipline that `check` accepts. `sound_priority`:
/// as in Options.
inline Schedule sound_schedule(Random& random, Discipline discipline,
                               double sound_priority = Options{}.sound_priority) {
  const bool bounded = discipline == Discipline::bounded;
  const Options options{.one_worker_a_stash = bounded,
                        .copies = discipline == Discipline::ordered,
                        .sound_priority = sound_priority};
  while (true) {
    const Schedule drawn(random_spec(random, options));
    Schedule schedule = drawn.with(discipline, bounded ? random_limits(random, drawn) : std::vector<int>{});
    if (check(schedule).ok()) return schedule;
  }
}

}  // namespace starpipe::plan::testing
