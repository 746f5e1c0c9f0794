// SPDX-License-Identifier: Apache-2.0
// Which data share a slot, against the definition.
#include "runtime/step/data_slots.hpp"

#include <set>

#include <gtest/gtest.h>

#include "runtime/networks.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;

constexpr int workers = 4;

TaskGraph graph_of(const char* name, int microbatches, bool recompute = false) {
  const model::Network network = tiny_gpt(workers);
  const plan::Schedule schedule = plan::make_schedule(
      name,
      {.workers = workers, .microbatches = microbatches, .graph = network.graph, .recompute = recompute});
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

void expect_sound(const TaskGraph& graph, const DataSlots& slots, std::size_t distance) {
  const std::vector<Use> uses = uses_of(graph);
  for (std::size_t a = 0; a < uses.size(); ++a) {
    ASSERT_LT(slots.of(a), slots.count());
    for (std::size_t b = 0; b < uses.size(); ++b) {
      if (a == b || slots.of(a) != slots.of(b) || uses[a].first > uses[b].first) continue;
      const Datum& one = graph.data()[a];
      const Datum& other = graph.data()[b];
      EXPECT_GT(uses[b].first, uses[a].last + distance) << "data " << a << ", " << b;
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
    for (const bool recompute : {false, true}) {
      const TaskGraph graph = graph_of(name, 12, recompute);
      for (const std::size_t distance : {0, 1, 20, 100000}) {
        SCOPED_TRACE(::testing::Message() << name << ", recompute " << recompute << ", " << distance);
        const DataSlots slots(graph, distance);
        expect_sound(graph, slots, distance);
        if (distance <= 20) {
          EXPECT_LT(slots.count(), graph.data().size());
        } else {
          EXPECT_EQ(slots.count(), graph.data().size());
        }
      }
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

TEST(DataSlots, AreAsManyForMoreMicrobatches) {
  for (const char* name : {"1f1b", "zb-h1"}) {
    const DataSlots some(graph_of(name, 40), 30);
    const DataSlots more(graph_of(name, 80), 30);
    EXPECT_EQ(some.count(), more.count()) << name;
  }
}

}  // namespace
}  // namespace starpipe::runtime
