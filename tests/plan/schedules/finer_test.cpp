// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedules/finer.hpp"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

/// Each stage of a chain as `groups` groups of `shards` shards, and the loss.
struct Sharded {
  StageGraph graph;
  std::vector<StagePart> parts;
};

Sharded sharded_chain(int stages, int groups, int shards) {
  std::vector<std::pair<int, int>> edges;
  std::vector<StagePart> parts;
  for (int g = 0; g < stages * groups; ++g) {
    for (int k = 0; k < shards; ++k) {
      parts.push_back({g / groups, k});
      for (int from = 0; g > 0 && from < shards; ++from)
        edges.emplace_back((g - 1) * shards + from, g * shards + k);
    }
  }
  const int loss = stages * groups * shards;
  for (int k = 0; k < shards; ++k) edges.emplace_back(loss - shards + k, loss);
  parts.push_back({stages - 1, 0});
  return {StageGraph(loss + 1, std::move(edges)), std::move(parts)};
}

Costs added_inputs(const StageGraph& graph) {
  Costs costs;
  costs.sizes.assign(index(graph.size()), {});
  for (int s = 0; s < graph.size(); ++s) {
    StageSizes& sizes = costs.sizes[index(s)];
    sizes.activation = sizes.gradient = 100;
    sizes.adds_inputs = graph.pred(s).size() > 1;
  }
  return costs;
}

TEST(WithParts, PutsTheShardsOfAWorkerSideBySide) {
  const auto [graph, parts] = sharded_chain(2, 2, 2);
  const Schedule whole = named("1f1b", 2, 4, 2);
  const Schedule finer = with_parts(whole, graph, parts, 2);
  EXPECT_EQ(finer.workers(), 4);
  EXPECT_TRUE(check(finer).ok());
  for (const JobId id : finer.order()) {
    const Job job = finer.job(id);
    const StagePart part = parts[index(job.stage)];
    const int worker = whole.compute(whole.find({part.stage, job.microbatch, job.pass}).value());
    EXPECT_EQ(finer.compute(id), 2 * worker + part.shard);
  }
}

TEST(WithParts, FinishesUnderManySchedules) {
  for (const char* name : {"1f1b", "gpipe", "zb-h1", "v-half", "interleaved-1f1b", "ddp", "fsdp"}) {
    SCOPED_TRACE(name);
    const ScheduleEntry& entry = find_schedule(name);
    const int stages = default_stages(entry, 2);
    for (const int shards : {1, 2, 4}) {
      const auto [graph, parts] = sharded_chain(stages, 2, shards);
      const Schedule finer = with_parts(named(name, 2, 4, stages), graph, parts, shards);
      const CheckResult result = check(finer);
      EXPECT_TRUE(result.ok()) << result.problem;
    }
  }
}

// With parts that last as long as their share, T workers take as long as one.
TEST(WithParts, LastsAsLongAsTheWhole) {
  const auto [graph, parts] = sharded_chain(2, 2, 2);
  const Schedule whole = named("1f1b", 2, 4, 2);
  Costs costs = added_inputs(graph);
  costs.durations.assign(index(graph.size()), {.F = 1, .B = 2, .W = 3});
  costs.durations.back() = {.F = 0, .B = 0, .W = 0};
  const Costs of_whole = costs_of_whole_stages(costs, graph, parts, whole.stages(), 2);
  EXPECT_EQ(of_whole.duration(0), (Durations{.F = 2, .B = 4, .W = 6}));
  EXPECT_DOUBLE_EQ(simulate(with_parts(whole, graph, parts, 2), costs).makespan,
                   simulate(whole, of_whole).makespan);
}

// Two workers that share three shards: one of them computes two, sequentially.
TEST(WithParts, PutsShardsRoundOverFewerWorkers) {
  const auto [graph, parts] = sharded_chain(2, 1, 3);
  const Schedule whole = named("1f1b", 2, 4, 2);
  const Schedule finer = with_parts(whole, graph, parts, 2);
  EXPECT_EQ(finer.workers(), 4);
  EXPECT_TRUE(check(finer).ok());
  for (const auto& [stage, worker] : {std::pair{0, 0}, {1, 1}, {2, 0}, {3, 2}, {4, 3}, {5, 2}})
    EXPECT_EQ(finer.compute(finer.forward(stage, 0)), worker);
  Costs costs = added_inputs(graph);
  costs.durations.assign(index(graph.size()), {.F = 1, .B = 2, .W = 3});
  costs.durations.back() = {.F = 0, .B = 0, .W = 0};
  const Costs of_whole = costs_of_whole_stages(costs, graph, parts, whole.stages(), 2);
  EXPECT_EQ(of_whole.duration(0), (Durations{.F = 2, .B = 4, .W = 6}));
  EXPECT_LE(simulate(finer, costs).makespan, simulate(whole, of_whole).makespan);
}

// T (T - 1) activations and as many gradients between two groups, for each micro-batch: each shard receives
// the results of the others.
TEST(WithParts, MovesPartialResultsBetweenAllShards) {
  for (const int shards : {2, 4}) {
    constexpr int microbatches = 3;
    const auto [graph, parts] = sharded_chain(1, 2, shards);
    const Schedule finer = with_parts(named("1f1b", 1, microbatches, 1), graph, parts, shards);
    Transfers sum;
    for (const Transfers& received : count_transfers(finer, added_inputs(graph))) {
      sum.activations.count += received.activations.count;
      sum.gradients.count += received.gradients.count;
    }
    // From group to group, and to and from the loss on the first worker.
    EXPECT_EQ(sum.activations.count, microbatches * (shards * (shards - 1) + shards - 1));
    EXPECT_EQ(sum.gradients.count, microbatches * (shards * (shards - 1) + shards - 1));
  }
}

// One gradient serves all inputs that a stage adds: shards on one worker receive it once.
TEST(WithParts, ShardsOnOneWorkerReceiveOneGradient) {
  ScheduleSpec spec;
  spec.graph = StageGraph(3, {{0, 2}, {1, 2}});
  spec.workers = 2;
  spec.placement = [](const Job& job) { return Placement{job.stage / 2, job.stage / 2}; };
  spec.priority = [](const Job& job) { return job.pass == Pass::F ? job.stage : 5 - job.stage; };
  const Schedule schedule(spec);
  EXPECT_EQ(count_transfers(schedule, added_inputs(spec.graph))[0].gradients.count, 1U);
  Costs by_columns = added_inputs(spec.graph);
  by_columns.sizes.back().adds_inputs = false;
  EXPECT_EQ(count_transfers(schedule, by_columns)[0].gradients.count, 2U);
}

TEST(WithParts, NeedAnOrder) {
  const auto [graph, parts] = sharded_chain(2, 1, 2);
  const Schedule greedy = named("1f1b", 2, 4, 2).with(Discipline::greedy);
  EXPECT_THROW(with_parts(greedy, graph, parts, 2), InputError);
}

}  // namespace
}  // namespace starpipe::plan
