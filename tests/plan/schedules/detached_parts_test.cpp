// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/detached_parts.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::plan {
namespace {

/// A chain of stages between `shards` sources, the embedding, and as many shards of the head with the loss.
struct WithVocabulary {
  int stages;
  int shards;
  StageGraph graph = StageGraph::chain(1);
  std::vector<StagePart> parts = {};
  Costs costs = {};

  WithVocabulary(int its_stages, int its_shards) : stages(its_stages), shards(its_shards) {
    std::vector<std::pair<int, int>> edges;
    for (int k = 0; k < shards; ++k) {
      parts.push_back({0, k, true});
      edges.emplace_back(k, shards);
    }
    for (int s = 0; s < stages; ++s) {
      parts.push_back({s, 0});
      if (s > 0) edges.emplace_back(shards + s - 1, shards + s);
    }
    for (int k = 0; k < shards; ++k) {
      parts.push_back({stages - 1, k, true});
      edges.emplace_back(shards + stages - 1, head(k));
      edges.emplace_back(head(k), loss());
    }
    parts.push_back({stages - 1, 0, true});
    graph = StageGraph(loss() + 1, std::move(edges));
    costs.durations.assign(parts.size(), {.F = 1, .B = 1, .W = 1});
    costs.sizes.assign(parts.size(), {.activation = 100, .gradient = 100});
    costs.sizes[index(shards)].adds_inputs = shards > 1;
    set_embedding(0.0625);
    set_head(1);
    costs.durations[index(loss())] = {.F = 0, .B = 0, .W = 0};
  }

  [[nodiscard]] int head(int k) const { return shards + stages + k; }
  [[nodiscard]] int loss() const { return 2 * shards + stages; }
  void set_embedding(double time) {
    for (int k = 0; k < shards; ++k)
      costs.durations[index(k)] = {.F = time / shards, .B = 0, .W = time / shards};
  }
  /// Each pass of the whole head lasts `time`.
  void set_head(double time) {
    for (int k = 0; k < shards; ++k)
      costs.durations[index(head(k))] = {.F = time / shards, .B = time / shards, .W = time / shards};
  }

  [[nodiscard]] Schedule place(const Schedule& whole, ShardPlacement placement = ShardPlacement::all) const {
    return with_parts(whole, graph, parts, 1, placement);
  }
  [[nodiscard]] Schedule run(const Schedule& whole, int ahead,
                             ShardPlacement placement = ShardPlacement::all) const {
    return with_detached_where_free(place(whole, placement), parts, costs, ahead);
  }
};

Schedule named_chain(const char* name, int workers, int microbatches, int stages) {
  return make_schedule(
      name, {.workers = workers, .microbatches = microbatches, .graph = StageGraph::chain(stages)});
}

/// The jobs of a worker that are not detached, as jobs of the chain.
std::vector<Job> own_jobs(const Schedule& schedule, const WithVocabulary& of, int worker) {
  std::vector<Job> jobs;
  for (const JobId id : schedule.order(worker)) {
    Job job = schedule.job(id);
    const StagePart& part = of.parts[index(job.stage)];
    if (part.detached) continue;
    job.stage = part.stage;
    jobs.push_back(job);
  }
  return jobs;
}

std::vector<Job> jobs_of(const Schedule& schedule, int worker) {
  std::vector<Job> jobs;
  for (const JobId id : schedule.order(worker)) jobs.push_back(schedule.job(id));
  return jobs;
}

TEST(DetachedParts, HaveWorkersOfTheirOwn) {
  const WithVocabulary of(4, 6);
  const Schedule whole = named_chain("1f1b", 4, 3, 4);
  const Schedule all = of.place(whole);
  const Schedule last = of.place(whole, ShardPlacement::last);
  for (int b = 0; b < 3; ++b) {
    for (int k = 0; k < 6; ++k) {
      EXPECT_EQ(all.compute(all.forward(k, b)), k % 4);
      EXPECT_EQ(all.compute(all.backward(of.head(k), b)), k % 4);
      EXPECT_EQ(last.compute(last.forward(k, b)), 0);
      EXPECT_EQ(last.compute(last.backward(of.head(k), b)), 3);
    }
    EXPECT_EQ(all.compute(all.forward(of.loss(), b)), 3);
    EXPECT_EQ(all.compute(all.forward(of.shards + 1, b)), 1);
  }
}

TEST(DetachedParts, FinishUnderManySchedules) {
  for (const char* name : {"1f1b", "gpipe", "zb-h1", "v-zb", "v-half", "interleaved-1f1b", "ddp", "fsdp"}) {
    for (const int workers : {2, 4}) {
      const int stages = default_stages(find_schedule(name), workers);
      const Schedule whole = named_chain(name, workers, 8, stages);
      for (const int shards : {1, 2, 3, 4, 9}) {
        for (const int ahead : {0, 2}) {
          for (const ShardPlacement placement : {ShardPlacement::all, ShardPlacement::last}) {
            SCOPED_TRACE(std::string(name) + " " + std::to_string(workers) + " " + std::to_string(shards));
            const WithVocabulary of(stages, shards);
            const Schedule schedule = of.run(whole, ahead, placement);
            const CheckResult result = check(schedule);
            EXPECT_TRUE(result.ok()) << result.problem;
            EXPECT_EQ(schedule.discipline(), Discipline::ordered);
          }
        }
      }
    }
  }
}

TEST(DetachedParts, LeaveEachWorkersOrderAsItIs) {
  for (const char* name : {"1f1b", "zb-h1", "interleaved-1f1b"}) {
    SCOPED_TRACE(name);
    const int stages = default_stages(find_schedule(name), 4);
    const WithVocabulary of(stages, 4);
    const Schedule whole = named_chain(name, 4, 8, stages);
    const Schedule schedule = of.run(whole, 0);
    for (int w = 0; w < 4; ++w) EXPECT_EQ(own_jobs(schedule, of, w), jobs_of(whole, w));
  }
}

TEST(DetachedParts, LetWorkersRunAheadWithinTheirMemory) {
  for (const int ahead : {1, 2, 3}) {
    const WithVocabulary of(4, 4);
    const Schedule whole = named_chain("1f1b", 4, 12, 4);
    const Schedule schedule = of.run(whole, ahead);
    bool one_more = false;
    for (int w = 0; w < 4; ++w) {
      int live = 0;
      int max = 0;
      for (const Job& job : own_jobs(schedule, of, w)) {
        live += job.pass == Pass::F ? 1 : -1;
        max = std::max(max, live);
      }
      EXPECT_LE(max, 4 - w + ahead);
      one_more = one_more || max > 4 - w;
    }
    EXPECT_TRUE(one_more);
  }
}

// A head of four blocks' time makes the last worker the bottleneck. Shared out, it loads all workers alike.
TEST(DetachedParts, TakeTheLoadOfTheHeadFromTheLastWorker) {
  WithVocabulary of(4, 4);
  of.set_head(4);
  const Schedule whole = named_chain("1f1b", 4, 16, 4);
  const double on_last = simulate(of.run(whole, 2, ShardPlacement::last), of.costs).makespan;
  const double on_all = simulate(of.run(whole, 2), of.costs).makespan;
  const double work = 16 * 3 * (4 + 4) / 4.0;
  EXPECT_GE(on_last, 16 * 3 * (1 + 4));
  EXPECT_GE(on_all, work);
  EXPECT_LE(on_all, 1.25 * work);
  // Without running ahead the last worker waits for the shards of each micro-batch.
  EXPECT_GT(simulate(of.run(whole, 0), of.costs).makespan, on_all);
}

// A greedy run that may go further ahead can take longer. Then the order that stays closer is kept.
TEST(DetachedParts, RunningFurtherAheadNeverTakesLonger) {
  for (const double head : {1.0, 2.0, 4.0}) {
    WithVocabulary of(8, 8);
    of.set_head(head);
    const Schedule whole = named_chain("1f1b", 8, 32, 8);
    double before = simulated_makespan(of.run(whole, 0), of.costs);
    for (const int ahead : {1, 2, 4, 8, std::numeric_limits<int>::max()}) {
      const double makespan = simulated_makespan(of.run(whole, ahead), of.costs);
      EXPECT_LE(makespan, before) << "head " << head << ", ahead " << ahead;
      before = makespan;
    }
  }
}

// Between the first and the last of four workers and the others; the loss is on the last one.
TEST(DetachedParts, MoveWhatTheFormulasSay) {
  constexpr int microbatches = 3;
  constexpr int shards = 4;
  const WithVocabulary of(4, shards);
  const Schedule schedule = of.run(named_chain("1f1b", 4, microbatches, 4), 2);
  std::uint64_t activations = 0;
  std::uint64_t gradients = 0;
  for (const Transfers& received : count_transfers(schedule, of.costs)) {
    activations += received.activations.count;
    gradients += received.gradients.count;
  }
  // Of the chain 3; of the embedding, of the head, and of its numbers K - 1 each.
  EXPECT_EQ(activations, microbatches * (3 + 3 * (shards - 1)));
  EXPECT_EQ(gradients, microbatches * (3 + 3 * (shards - 1)));
}

// The embedding could run all its micro-batches at once, but their outputs would fill the memory.
TEST(DetachedParts, HoldSourcesBack) {
  constexpr int ahead = 1;
  const WithVocabulary of(2, 2);
  const Schedule schedule = of.run(named_chain("1f1b", 2, 8, 2), ahead);
  for (int b = ahead + 1; b < 8; ++b) {
    for (int k = 0; k < of.shards; ++k) {
      EXPECT_GT(schedule.turn(schedule.forward(k, b)),
                schedule.turn(schedule.forward(of.shards, b - ahead - 1)));
    }
  }
}

// B and W of the head's shards are apart where they are in the schedule; sources and the loss have one pass.
TEST(DetachedParts, SplitBackwardPassesAsTheirStageDoes) {
  const WithVocabulary of(4, 4);
  const Schedule schedule = of.run(named_chain("zb-h1", 4, 8, 4), 2);
  EXPECT_TRUE(schedule.split_backward(of.head(1), 0));
  EXPECT_FALSE(schedule.split_backward(0, 0));
  EXPECT_FALSE(schedule.split_backward(of.loss(), 0));
}

}  // namespace
}  // namespace starpipe::plan
