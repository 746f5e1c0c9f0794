// SPDX-License-Identifier: Apache-2.0
// The tasks that each rank inserts, against the definition: it runs them or owns one of their inputs.
#include <gtest/gtest.h>

#include "runtime/engine/data_use.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "support/networks.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;

void expect_tasks(const TaskGraph& graph, const std::vector<bool>& local) {
  const RankTasks mine = tasks_of_rank(graph, local);
  std::vector<std::uint32_t> last_use(graph.data().size(), RankTasks::unused);
  std::uint32_t next = 0;
  for (std::size_t t = 0; t < graph.tasks().size(); ++t) {
    const Task& task = graph.tasks()[t];
    bool expected = local[index(task.worker)];
    for (const DataAccess& access : task.data)
      expected |= access.access == Access::read && local[index(graph.data()[access.datum].worker)];
    if (!expected) continue;
    ASSERT_LT(next, mine.tasks.size());
    EXPECT_EQ(mine.tasks[next], t);
    for (const DataAccess& access : task.data) last_use[access.datum] = next;
    ++next;
  }
  EXPECT_EQ(next, mine.tasks.size());
  EXPECT_EQ(mine.last_use, last_use);
}

TEST(RankTasks, AreThoseThatTheRankRunsOrSendsTo) {
  const model::Network network = tiny_gpt(4);
  for (const char* name : {"1f1b", "ddp", "fsdp"}) {
    SCOPED_TRACE(name);
    const plan::Schedule schedule =
        plan::make_schedule(name, {.workers = 4, .microbatches = 4, .graph = network.graph});
    const TaskGraph graph(schedule, network, {.kind = "sgd"});
    expect_tasks(graph, {true, true, false, false});
    expect_tasks(graph, {false, true, false, false});
    EXPECT_EQ(tasks_of_rank(graph, {true, true, true, true}).tasks.size(), graph.tasks().size());
    EXPECT_TRUE(tasks_of_rank(graph, {false, false, false, false}).tasks.empty());
  }
}

}  // namespace
}  // namespace starpipe::runtime
