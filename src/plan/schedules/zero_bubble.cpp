// SPDX-License-Identifier: Apache-2.0
// Zero Bubble Pipeline Parallelism, 2024, arXiv 2401.10241: 1F1B with the backward pass split. After some
// forward passes, the warm-up, F and B alternate; W fills the gaps.
#include <algorithm>

#include "plan/schedules/read_request.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedules/orders.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

using WarmUp = std::vector<int>;  // [stage], number of forward passes before the first B

// F and B in the time slots of 1F1B, but with the given warm-ups, which must decrease along the pipeline.
std::vector<Job> alternating_passes(const WarmUp& warm_up, int microbatches) {
  const auto stages = static_cast<int>(warm_up.size());
  std::vector<std::pair<int, Job>> slots;
  for (int b = 0; b < microbatches; ++b) {
    for (int s = 0; s < stages; ++s) {
      const int backward = 2 * stages - 1 - s + 2 * b;
      slots.push_back({backward + 1 - 2 * warm_up[index(s)], {s, b, Pass::F}});
      slots.push_back({backward, {s, b, Pass::B}});
    }
  }
  std::ranges::stable_sort(slots, {}, &std::pair<int, Job>::first);
  std::vector<Job> passes;
  for (const auto& [slot, job] : slots) passes.push_back(job);
  return passes;
}

// Returns the schedule with F and B in the order of `passes`, and W where it fits; stage s on worker s.
Schedule filled(const char* name, const ScheduleRequest& request, std::span<const Job> passes, int limit,
                const Costs& costs) {
  const StageGraph graph = requested_chain(name, request, 1);
  return in_order(name, graph, request.microbatches,
                  with_weight_gradients(
                      passes, graph, request.workers, request.microbatches,
                      [](int stage, int) { return stage; }, limit, costs));
}

WarmUp warm_up_of(int stages, int per_stage, int extra) {
  WarmUp warm_up;
  for (int s = 0; s < stages; ++s) warm_up.push_back(per_stage * (stages - s) + extra);
  return warm_up;
}

// Returns the paper's handcrafted schedule, for passes of one length.
Schedule hand_made(const char* name, const ScheduleRequest& request, int per_stage, int extra) {
  const WarmUp warm_up = warm_up_of(request.workers, per_stage, extra);
  return filled(name, request, alternating_passes(warm_up, request.microbatches), warm_up.front(), {});
}

const bool registered_h1 = register_schedule(
    {.name = "zb-h1",
     .summary = "1F1B with B and W split, W in the gaps: a third of the bubbles, the same memory",
     .source = "Zero Bubble Pipeline Parallelism, 2024, arXiv 2401.10241, section 2.1",
     .build = [](const ScheduleRequest& request) { return hand_made("zb-h1", request, 1, 0); }});

const bool registered_h2 = register_schedule(
    {.name = "zb-h2",
     .summary = "no bubbles in a device's span, for up to twice 1F1B's memory",
     .source = "Zero Bubble Pipeline Parallelism, 2024, arXiv 2401.10241, section 2.2",
     .build = [](const ScheduleRequest& request) { return hand_made("zb-h2", request, 2, -1); }});

// Returns the warm-up of each stage: as many forward passes as end before the gradient of the first B
// arrives. With `eager`, one more pass: it starts, but does not end, before that time. A stage has fewer
// passes if the stage before it has delivered fewer results by then.
WarmUp fitting_warm_up(const StageGraph& graph, int microbatches, int limit, const Costs& costs, bool eager) {
  const int stages = graph.size();
  const int max = std::min(limit, microbatches);
  std::vector<double> first_forward_end;
  double time = 0;
  for (int s = 0; s < stages; ++s) {
    if (s > 0) time += costs.link(s - 1, s).time(costs.size(s - 1).activation);
    time += costs.duration(s).F;
    first_forward_end.push_back(time);
  }
  WarmUp warm_up(index(stages), 1);
  double gradient = time;  // time at which the first gradient leaves the stage after
  for (int s = stages - 1; s >= 0; --s) {
    int& count = warm_up[index(s)];
    if (s + 1 < stages) {
      gradient += costs.link(s + 1, s).time(costs.size(s).gradient);
      const double forward = costs.duration(s).F;
      const double tolerance = 1e-9 * gradient;
      for (double end = first_forward_end[index(s)];
           count < max && end < gradient - tolerance && (eager || end + forward <= gradient + tolerance);
           end += forward) {
        ++count;
      }
      const double busy = first_forward_end[index(s)] + (count - 1) * forward;
      gradient = std::max(gradient, busy);
    }
    gradient += costs.duration(s).B;
  }
  for (std::size_t s = 1; s < warm_up.size(); ++s) {
    if (warm_up[s] < microbatches) warm_up[s] = std::max(1, std::min(warm_up[s], warm_up[s - 1] - 1));
  }
  // A warm-up beyond the last micro-batch has no meaning, but the time slots need warm-ups that decrease.
  for (std::size_t s = warm_up.size() - 1; s-- > 0;) warm_up[s] = std::max(warm_up[s], warm_up[s + 1] + 1);
  return warm_up;
}

// Returns the shorter of the two schedules with and without `eager`.
Schedule adaptive(const char* name, const ScheduleRequest& request, int limit) {
  const StageGraph graph = requested_chain(name, request, 1);
  const auto build = [&](bool eager) {
    const WarmUp warm_up =
        fitting_warm_up(graph, request.microbatches, limit, requested_costs(request), eager);
    return filled(name, request, alternating_passes(warm_up, request.microbatches), limit,
                  requested_costs(request));
  };
  Schedule lazy = build(false);
  Schedule eager = build(true);
  const Timeline a = simulate(lazy, requested_costs(request));
  const Timeline b = simulate(eager, requested_costs(request));
  return std::pair(b.device_span, b.makespan) < std::pair(a.device_span, a.makespan) ? eager : lazy;
}

const bool registered_1p = register_schedule(
    {.name = "zb-1p",
     .summary = "zero bubble with 1F1B's memory; made for the durations",
     .source = "Zero Bubble Pipeline Parallelism, 2024, arXiv 2401.10241, section 3",
     .build = [](const ScheduleRequest& request) { return adaptive("zb-1p", request, request.workers); }});

const bool registered_2p =
    register_schedule({.name = "zb-2p",
                       .summary = "zero bubble with twice 1F1B's memory; made for the durations",
                       .source = "Zero Bubble Pipeline Parallelism, 2024, arXiv 2401.10241, section 3",
                       .build = [](const ScheduleRequest& request) {
                         return adaptive("zb-2p", request, 2 * request.workers);
                       }});

// Returns a block in which B follows B as closely as F follows F, so that a stash lives for at most 2 P of 3
// P cells. It has two micro-batches: with one, F and B would be in the same cells.
BuildingBlock close_block(int workers) {
  BuildingBlock block{.workers = workers, .stages = workers, .microbatches = 2, .interval = 6, .passes = {}};
  for (int b = 0; b < 2; ++b) {
    for (int s = 0; s < workers; ++s) {
      block.passes.push_back({{s, b, Pass::F}, s, 2 * b + s});
      block.passes.push_back({{s, b, Pass::B}, s, 2 * b + 2 * workers - 1 - s});
    }
  }
  return block;
}

// Returns the schedule with the smallest memory that costs no time. The order of `close_block` needs 2 (W /
// 3) + 2 stashes. If 1F1B holds no more than that (W <= 4, W = 6 or few micro-batches), its order is better,
// because it loses less time at the ends.
Schedule low_memory(const ScheduleRequest& request) {
  const StageGraph graph = requested_chain("zb-low-memory", request, 1);
  Grid grid(close_block(request.workers), request.microbatches);
  grid.reorder(Grid::Steady::kept);
  std::vector<Job> passes = grid.jobs();
  int limit = std::ranges::max(grid.peak_memory());
  if (const int held = std::min(request.workers, request.microbatches); limit >= held) {
    passes = alternating_passes(warm_up_of(request.workers, 1, 0), request.microbatches);
    limit = held;
  }
  const auto build = [&](int max) {
    return filled("zb-low-memory", request, passes, max, requested_costs(request));
  };
  Schedule best = build(limit);
  const double makespan = simulated_makespan(best, requested_costs(request));
  while (--limit > 0) {
    Schedule tighter = build(limit);
    if (simulated_makespan(tighter, requested_costs(request)) > makespan) break;
    best = std::move(tighter);
  }
  return best;
}

const bool registered_zb_low_memory = register_schedule(
    {.name = "zb-low-memory",
     .summary = "zero bubble with about two thirds of 1F1B's memory; made for the durations",
     .source = "Pipeline Parallelism with Controllable Memory, 2024, appendix H, fig. 16b",
     .build = low_memory});

}  // namespace
}  // namespace starpipe::plan
