// SPDX-License-Identifier: Apache-2.0
// The verdicts on gradients in the task graph of a step.
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "plan/simulate/reductions.hpp"
#include "runtime/engine/graph_cases.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/sequential_run.hpp"
#include "starpipe/base/index.hpp"
#include "support/floats.hpp"
#include "support/optimizers.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;

/// Tracks what the verdicts of a graph know after each task: the workers whose passes they have judged, and
/// the stages whose norm they have.
class Knowledge {
 public:
  explicit Knowledge(const TaskGraph& graph) : graph_(graph) {}

  void take(const Task& task) {
    if (task.kind == TaskKind::judge) {
      EXPECT_EQ(task.data[0].access, Access::write);
      known_[task.data[0].datum] = {};
      known_[task.data[0].datum].judged = {task.worker};
    } else if (task.kind == TaskKind::norm) {
      EXPECT_EQ(graph_.data()[task.data[0].datum].kind, DataKind::weight_gradient);
      EXPECT_EQ(task.data[0].access, Access::read);
      EXPECT_EQ(task.data[1].access, Access::update);
      EXPECT_EQ(known_[task.data[1].datum].judged, std::set{task.worker}) << "before it is merged";
      EXPECT_TRUE(known_[task.data[1].datum].stages.insert(task.stage).second);
    } else if (task.kind == TaskKind::merge) {
      EXPECT_EQ(task.data[1].access, Access::update);
      known_[task.data[1].datum].judged.merge(std::set(known_[task.data[0].datum].judged));
      known_[task.data[1].datum].stages.merge(std::set(known_[task.data[0].datum].stages));
    }
  }
  const std::set<int>& judged(std::size_t verdict) { return known_[verdict].judged; }
  const std::set<int>& stages(std::size_t verdict) { return known_[verdict].stages; }

 private:
  struct OfVerdict {
    std::set<int> judged;
    std::set<int> stages;
  };
  const TaskGraph& graph_;
  std::map<std::size_t, OfVerdict> known_;
};

std::set<int> sets_with_parameters(const model::Network& network) {
  std::set<int> found;
  const std::vector<model::ParameterSet> sets = network.sets();
  for (int s = 0; std::cmp_less(s, sets.size()); ++s) {
    if (sets[index(s)].size > 0) found.insert(s);
  }
  return found;
}

// In a graph that can skip, an update reads its worker's verdict. That verdict knows of every pass: each pass
// precedes the judgement on its worker, and merges bring all judgements to all holders.
TEST(TaskGraph, UpdatesWaitForTheVerdictsOfAllWorkers) {
  for_each_case([](const GraphCase& c) {
    const TaskGraph graph(c.schedule, c.network, sgd, {.can_skip = true});
    const std::set<int> stages = sets_with_parameters(c.network);
    Knowledge knowledge(graph);
    std::set<int> passed;
    std::set<int> judged;
    int updates = 0;
    for (const Task& task : graph.tasks()) {
      knowledge.take(task);
      if (is_pass(task.kind)) {
        const DataAccess& last = task.data.back();
        EXPECT_EQ(last.access, Access::precede);
        EXPECT_EQ(graph.data()[last.datum].kind, DataKind::verdict);
        EXPECT_EQ(graph.data()[last.datum].worker, task.worker);
        EXPECT_FALSE(judged.contains(task.worker));
        passed.insert(task.worker);
      } else if (task.kind == TaskKind::judge) {
        judged.insert(task.worker);
      } else if (task.kind == TaskKind::optimize) {
        ++updates;
        EXPECT_EQ(task.data[0].access, Access::read);
        EXPECT_EQ(graph.data()[task.data[0].datum].worker, task.worker);
        EXPECT_TRUE(std::ranges::includes(knowledge.judged(task.data[0].datum), passed));
        EXPECT_EQ(knowledge.stages(task.data[0].datum), stages);
      }
    }
    EXPECT_GT(updates, 0);
  });
}

// Each stage's norm is computed once, by a holder. In the end one verdict has all of them. Updates wait for
// the complete verdict when they clip, and only then; an emulated step has no verdicts.
TEST(TaskGraph, TheNormsOfAllStagesMeetInOneVerdict) {
  model::OptimizerConfig clipped = sgd;
  clipped.clip = 1;
  for_each_case([&](const GraphCase& c) {
    const std::set<int> stages = sets_with_parameters(c.network);
    for (const bool clips : {false, true}) {
      const TaskGraph graph(c.schedule, c.network, clips ? clipped : sgd);
      Knowledge knowledge(graph);
      std::map<int, int> norms;
      for (const Task& task : graph.tasks()) {
        knowledge.take(task);
        if (task.kind == TaskKind::norm) {
          EXPECT_TRUE(norms.emplace(task.stage, task.worker).second) << "two norms of a stage";
          const int first = graph.parameters()[index(task.stage)].first_stage();
          const auto holders = plan::weight_holders(c.schedule, first);
          EXPECT_NE(std::ranges::find(holders, task.worker), holders.end());
        }
        if (task.kind != TaskKind::optimize) continue;
        const std::size_t first = task.data[0].datum;
        EXPECT_EQ(graph.data()[first].kind == DataKind::verdict, clips);
        if (!clips) continue;
        EXPECT_EQ(task.data[0].access, Access::read);
        EXPECT_EQ(graph.data()[first].worker, task.worker);
        EXPECT_EQ(knowledge.stages(first), stages);
      }
      EXPECT_EQ(norms.size(), stages.size());
      ASSERT_TRUE(graph.complete_verdict());
      EXPECT_EQ(knowledge.stages(*graph.complete_verdict()), stages);
      std::size_t parameters = 0;
      const std::vector<model::ParameterSet> sets = c.network.sets();
      for (std::size_t s = 0; s < sets.size(); ++s) {
        EXPECT_EQ(graph.parameters()[s].first, parameters);
        parameters += sets[s].parameters.size();
      }
      EXPECT_EQ(graph.data()[*graph.complete_verdict()].size, Verdict::words(parameters));
    }
    const TaskGraph emulated(c.schedule, c.network, sgd, {.has_norm = false});
    EXPECT_FALSE(emulated.complete_verdict());
    EXPECT_TRUE(std::ranges::none_of(emulated.tasks(), [](const Task& task) {
      return task.kind == TaskKind::judge || task.kind == TaskKind::norm || task.kind == TaskKind::merge;
    }));
  });
}

// The bits of a complete verdict do not depend on the order of the merges, and merging twice changes nothing.
TEST(TaskGraph, VerdictsAreMergedWithoutAddition) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<Floats> memory(3, Floats(Verdict::words(4)));
  std::vector<Verdict> verdicts;
  for (Floats& words : memory) verdicts.emplace_back(words).begin(false);
  verdicts[0].sums()[0] = 0.1;
  verdicts[1].sums()[1] = std::numeric_limits<double>::quiet_NaN();
  verdicts[2].sums()[2] = 0.3;
  verdicts[2].sums()[3] = static_cast<double>(infinity);
  EXPECT_DOUBLE_EQ(verdicts[0].norm(), std::sqrt(0.1));
  EXPECT_FALSE(verdicts[0].skips());
  EXPECT_TRUE(verdicts[1].skips() && verdicts[2].skips());
  for (int time = 0; time < 2; ++time) {
    verdicts[0].merge(verdicts[1]);
    verdicts[2].merge(verdicts[0]);
    verdicts[1].merge(verdicts[2]);
    verdicts[0].merge(verdicts[1]);
  }
  for (const Verdict& verdict : verdicts) {
    EXPECT_EQ(verdict.sums()[0], 0.1);
    EXPECT_TRUE(std::isnan(verdict.sums()[1]));
    EXPECT_EQ(verdict.sums()[2], 0.3);
    EXPECT_TRUE(std::isinf(verdict.sums()[3]));
  }
  verdicts[0].begin(true);
  verdicts[1].begin(false);
  EXPECT_EQ(verdicts[0].norm(), 0);
  EXPECT_TRUE(verdicts[0].skips());
  EXPECT_FALSE(verdicts[1].skips());
  verdicts[1].merge(verdicts[0]);
  EXPECT_TRUE(verdicts[1].skips());
}

}  // namespace
}  // namespace starpipe::runtime
