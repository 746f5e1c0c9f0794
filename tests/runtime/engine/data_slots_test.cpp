// SPDX-License-Identifier: Apache-2.0
// Which data share a slot, against the definition.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/engine/data_use.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "support/networks.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;

constexpr int workers = 4;

TaskGraph graph_of(const char* name, int microbatches, plan::Home home = plan::Home::worker) {
  const model::Network network = tiny_gpt(workers);
  const plan::Schedule schedule = plan::make_schedule(
      name, {.workers = workers, .microbatches = microbatches, .graph = network.graph, .homes = {home}});
  return {schedule, network, {.kind = "adamw"}};
}

/// The first and the last task that touch a datum.
struct Use {
  std::size_t first = 0;
  std::size_t last = 0;
};

std::vector<Use> uses_of(const TaskGraph& graph) {
  std::vector<Use> uses(graph.data().size(), {.first = graph.tasks().size()});
  for (std::size_t t = 0; t < graph.tasks().size(); ++t) {
    for (const DataAccess& access : graph.tasks()[t].data) {
      Use& use = uses[access.datum];
      use.first = std::min(use.first, t);
      use.last = t;
    }
  }
  return uses;
}

/// By task: the tasks that have always ended when it starts. Follows from the orders of the workers' jobs,
/// and of each channel's copies, and from the data that jobs read.
std::vector<std::vector<bool>> ended_before(const TaskGraph& graph) {
  const std::size_t count = graph.tasks().size();
  std::vector<std::vector<bool>> ended(count, std::vector<bool>(count));
  using Runner = std::pair<int, std::optional<plan::Channel>>;
  std::map<Runner, std::optional<std::size_t>> last;
  std::vector<std::optional<std::size_t>> writer(graph.data().size());
  for (std::size_t t = 0; t < count; ++t) {
    const Task& task = graph.tasks()[t];
    if (!task.job) continue;
    const auto add = [&](std::optional<std::size_t> task_before) {
      if (!task_before) return;
      ended[t][*task_before] = true;
      for (std::size_t i = 0; i < *task_before; ++i) ended[t][i] = ended[t][i] || ended[*task_before][i];
    };
    std::optional<std::size_t>& before = last[{task.worker, task.channel}];
    add(before);
    for (const DataAccess& access : task.data) {
      if (access.access == Access::read && graph.data()[access.datum].microbatch >= 0)
        add(writer[access.datum]);
      if (access.access == Access::write) writer[access.datum] = t;
    }
    before = t;
  }
  return ended;
}

bool all_ended(const TaskGraph& graph, const std::vector<std::vector<bool>>& ended, std::size_t datum,
               std::size_t t) {
  for (std::size_t user = 0; user < graph.tasks().size(); ++user) {
    for (const DataAccess& access : graph.tasks()[user].data) {
      if (access.datum == datum && !ended[t][user]) return false;
    }
  }
  return true;
}

/// Returns, for each datum, the datum whose slot it must have. That is the datum itself, with one exception:
/// with `moves`, the result of L has the slot of the result of F.
std::vector<std::size_t> counted_as(const TaskGraph& graph, bool moves) {
  std::vector<std::size_t> as(graph.data().size());
  std::map<std::pair<int, int>, std::size_t> made;
  for (std::size_t d = 0; d < as.size(); ++d) {
    const Datum& datum = graph.data()[d];
    const bool is_stash = moves && datum.kind == DataKind::stash;
    as[d] = is_stash ? made.try_emplace({datum.stage, datum.microbatch}, d).first->second : d;
  }
  return as;
}

void expect_sound(const TaskGraph& graph, const DataSlots& slots, std::size_t distance, bool moves = false) {
  const std::vector<std::size_t> as = counted_as(graph, moves);
  std::vector<Use> uses = uses_of(graph);
  for (std::size_t d = 0; d < as.size(); ++d) {
    if (as[d] == d) continue;
    uses[as[d]].last = uses[d].last;
    uses[d] = uses[as[d]];
  }
  const auto ended = ended_before(graph);
  for (std::size_t a = 0; a < uses.size(); ++a) {
    ASSERT_LT(slots.of(a), slots.count());
    for (std::size_t b = 0; b < uses.size(); ++b) {
      if (as[a] == as[b]) {
        EXPECT_EQ(slots.of(a), slots.of(b));
        continue;
      }
      if (slots.of(a) != slots.of(b) || uses[a].first > uses[b].first) continue;
      const Datum& one = graph.data()[as[a]];
      const Datum& other = graph.data()[as[b]];
      EXPECT_TRUE(uses[b].first > uses[a].last + distance || all_ended(graph, ended, a, uses[b].first))
          << "data " << a << ", " << b;
      EXPECT_EQ(one.kind, other.kind);
      EXPECT_EQ(one.stage, other.stage);
      EXPECT_EQ(one.worker, other.worker);
      EXPECT_EQ(one.size, other.size);
      EXPECT_GE(one.microbatch, 0) << "it lasts over the steps";
    }
  }
}

TEST(DataSlots, AreSharedByDataFarApart) {
  for (const char* name : {"1f1b", "zb-h1", "gpipe", "ddp", "fsdp"}) {
    for (const plan::Home home : {plan::Home::worker, plan::Home::none, plan::Home::disk}) {
      const TaskGraph graph = graph_of(name, 12, home);
      for (const int distance : {0, 1, 20, 100000}) {
        SCOPED_TRACE(::testing::Message() << name << ", home " << to_string(home) << ", " << distance);
        const DataSlots slots(graph, distance);
        expect_sound(graph, slots, index(distance));
        // Under gpipe a worker may run any number of micro-batches ahead, so only the distance lets data
        // share.
        const bool runs_ahead = name == std::string_view("gpipe") && distance > 20;
        if (!runs_ahead) {
          EXPECT_LT(slots.count(), graph.data().size());
        }
      }
    }
  }
}

// The stash that L brings back lies where F has made it, as does one that waits on another worker, and no
// other datum does in between.
TEST(DataSlots, OfStashesThatMove) {
  for (const char* name : {"1f1b", "zb-h1", "gpipe", "ddp", "interleaved-1f1b"}) {
    for (const plan::Home home : {plan::Home::host, plan::Home::at(1)}) {
      const TaskGraph graph = graph_of(name, 12, home);
      const std::vector<std::size_t> as = counted_as(graph, true);
      for (const std::optional<int> distance : {std::optional(0), std::optional(20), std::optional<int>()}) {
        SCOPED_TRACE(::testing::Message()
                     << name << ", " << to_string(home) << ", " << distance.value_or(-1));
        const DataSlots slots(graph, distance, true);
        expect_sound(graph, slots, index(distance.value_or(0)), true);
        int moved = 0;
        std::vector<bool> continues(as.size(), false);
        std::map<std::size_t, std::size_t> last;
        for (std::size_t d = 0; d < as.size(); ++d) {
          if (as[d] != d) {
            ++moved;
            continues[last.at(as[d])] = true;
          }
          last[as[d]] = d;
        }
        for (std::size_t d = 0; d < as.size(); ++d) EXPECT_EQ(slots.continues(d), continues[d]) << d;
        // One stage for each worker, and one of them is the home of the others.
        EXPECT_EQ(moved, home.peer() ? 2 * 12 * (workers - 1) : 12 * workers);
      }
      const DataSlots copied(graph, 20);
      for (std::size_t d = 0; d < as.size(); ++d) EXPECT_FALSE(copied.continues(d));
    }
  }
}

TEST(DataSlots, AreNotSharedWithoutADistance) {
  const TaskGraph graph = graph_of("1f1b", 12);
  const DataSlots slots(graph, std::nullopt);
  std::set<std::size_t> used;
  for (std::size_t d = 0; d < graph.data().size(); ++d) used.insert(slots.of(d));
  EXPECT_EQ(used.size(), graph.data().size());
  EXPECT_EQ(slots.count(), graph.data().size());
}

// A worker that runs ahead must not wait for a slot.
TEST(DataSlots, AreNotSharedByResultsOfAWorkerThatRunsAhead) {
  const TaskGraph graph = graph_of("gpipe", 40);
  const DataSlots slots(graph, 100000);
  std::set<std::size_t> activations;
  std::size_t count = 0;
  for (std::size_t d = 0; d < graph.data().size(); ++d) {
    if (graph.data()[d].kind != DataKind::activation) continue;
    activations.insert(slots.of(d));
    ++count;
  }
  EXPECT_EQ(activations.size(), count);
}

TEST(DataSlots, AreAsManyForMoreMicrobatches) {
  for (const char* name : {"1f1b", "zb-h1"}) {
    for (const int distance : {30, 100000}) {
      const DataSlots some(graph_of(name, 40), distance);
      const DataSlots more(graph_of(name, 80), distance);
      EXPECT_EQ(some.count(), more.count()) << name << ", " << distance;
    }
  }
}

}  // namespace
}  // namespace starpipe::runtime
