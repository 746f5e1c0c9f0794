// SPDX-License-Identifier: Apache-2.0
// Schedules that repeat a pattern of Pipelined Model Parallelism, made for given durations, transfers and a
// memory limit.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "plan/schedules/best_pattern.hpp"
#include "plan/schedules/read_request.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

constexpr int max_repetitions = 4;
constexpr double max_parts = 16;  // number of stages that stand for one transfer

/// The stages as a chain in which each transfer that overlaps compute is a stage on a worker of its own, a
/// link (Pipelined Model Parallelism, section 3.1). Real links carry several transfers at a time, so a long
/// transfer is several such stages.
struct LinkedChain {
  std::vector<ChainStage> own;  ///< without the links
  std::vector<ChainStage> chain;
  std::vector<int> stages;  ///< the schedule's stage for each stage of the chain; below 0 for a link
  std::vector<int> limits;

  LinkedChain(const Costs& costs, int count, std::span<const int> memory_limits)
      : own(own_times(costs, count)) {
    const double longest = std::ranges::max_element(own, {}, &ChainStage::time)->time();
    for (int s = 0; s < count; ++s) {
      add(own[index(s)], s,
          memory_limits.empty() ? std::numeric_limits<int>::max() : memory_limits[index(s)]);
      if (s + 1 == count || !costs.prefetch) continue;
      const Link& between = costs.link(s, s + 1);
      const ChainStage link{.forward = between.time(costs.size(s).activation),
                            .backward = between.time(costs.size(s).gradient)};
      const double parts = std::min(std::ceil(link.time() / longest), max_parts);
      for (int part = 0; part < static_cast<int>(parts); ++part) {
        add({.forward = link.forward / parts, .backward = link.backward / parts}, -1,
            std::numeric_limits<int>::max());
      }
    }
  }

 private:
  static std::vector<ChainStage> own_times(const Costs& costs, int count) {
    std::vector<ChainStage> own;
    double total = 0;
    for (int s = 0; s < count; ++s) {
      const Durations& time = costs.duration(s);
      ChainStage stage{.forward = time.F, .backward = time.of(Pass::BW)};
      if (!costs.prefetch && s > 0) stage.forward += costs.link(s - 1, s).time(costs.size(s - 1).activation);
      if (!costs.prefetch && s + 1 < count)
        stage.backward += costs.link(s + 1, s).time(costs.size(s).gradient);
      total += stage.time();
      own.push_back(stage);
    }
    if (!(total > 0)) own.assign(index(count), ChainStage{});  // a chain that takes no time has no period
    return own;
  }

  void add(const ChainStage& stage, int number, int limit) {
    chain.push_back(stage);
    stages.push_back(number);
    limits.push_back(limit);
  }
};

Schedule periodic(const char* name, const ScheduleRequest& request,
                  PeriodicPattern (*best)(std::span<const ChainStage> chain, std::span<const int> limits)) {
  const int stages = requested_chain(name, request, 1).size();
  // A pattern is made for one limit. Where workers have different limits, the order is changed as any other
  // is.
  const std::vector<int>& asked = request.memory_limits;
  const bool is_same = std::ranges::adjacent_find(asked, std::not_equal_to()) == asked.end();
  const std::vector<int> limits = is_same ? asked : std::vector<int>{};
  const LinkedChain linked(requested_costs(request), stages, limits);
  PeriodicPattern pattern = best(linked.chain, linked.limits);
  for (PeriodicOperation& op : pattern.operations) op.stage = op.worker = linked.stages[index(op.stage)];
  std::erase_if(pattern.operations, [](const PeriodicOperation& op) { return op.stage < 0; });
  Schedule schedule = unrolled(name, pattern, linked.own, request.microbatches);
  if (limits.empty()) return schedule;
  return schedule.with(Discipline::ordered, limits);
}

const bool registered_star = register_schedule(
    {.name = "1f1b-star",
     .summary = "1F1B with the shortest period for the durations, and a memory limit if there is one",
     .source = "Pipelined Model Parallelism: Complexity Results, 2021, section 5.1, algorithm 1 (1F1B*)",
     .build = [](const ScheduleRequest& request) {
       return periodic("1f1b-star", request,
                       [](std::span<const ChainStage> chain, std::span<const int> limits) {
                         return one_forward_one_backward_star(chain, min_period(chain, limits));
                       });
     }});

const bool registered_k_periodic = register_schedule(
    {.name = "k-periodic",
     .summary = "1f1b-star with patterns of up to 4 micro-batches, shorter ones where memory is short",
     .source = "Pipelined Model Parallelism: Complexity Results, 2021, section 5.2, and a search over such "
               "patterns",
     .build = [](const ScheduleRequest& request) {
       return periodic("k-periodic", request,
                       [](std::span<const ChainStage> chain, std::span<const int> limits) {
                         return best_pattern(chain, limits, max_repetitions).pattern;
                       });
     }});

}  // namespace
}  // namespace starpipe::plan
