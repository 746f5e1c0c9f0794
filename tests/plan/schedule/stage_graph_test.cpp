// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/stage_graph.hpp"

#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "support/message_of.hpp"
#include "support/random_schedules.hpp"

namespace starpipe::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Edges = std::vector<std::pair<int, int>>;

std::string refusal(int stages, const Edges& edges) {
  return message_of([&] { const StageGraph graph(stages, edges); });
}

TEST(StageGraph, ChainLinksEachStageToTheNext) {
  const auto graph = StageGraph::chain(4);

  EXPECT_EQ(graph.size(), 4);
  EXPECT_EQ(graph.length(), 4);
  EXPECT_EQ(graph.sink(), 3);
  EXPECT_TRUE(graph.is_chain());
  EXPECT_THAT(graph.pred(0), IsEmpty());
  EXPECT_THAT(graph.pred(2), ElementsAre(1));
  EXPECT_THAT(graph.succ(2), ElementsAre(3));
  EXPECT_THAT(graph.succ(3), IsEmpty());
  for (int s = 0; s < 4; ++s) EXPECT_EQ(graph.depth(s), s);
  EXPECT_THAT(graph.edges(), ElementsAre(std::pair(0, 1), std::pair(1, 2), std::pair(2, 3)));
}

TEST(StageGraph, ChainOfOneStageHasNoEdges) {
  const auto graph = StageGraph::chain(1);

  EXPECT_EQ(graph.size(), 1);
  EXPECT_EQ(graph.length(), 1);
  EXPECT_EQ(graph.sink(), 0);
  EXPECT_TRUE(graph.is_chain());
  EXPECT_THAT(graph.edges(), IsEmpty());
}

TEST(StageGraph, TwoLegsMeetInTheirSink) {
  // 4 -> 0 and 3 -> 1 -> 0; 0 -> 2 is the loss.
  const StageGraph graph(5, {{1, 0}, {4, 0}, {0, 2}, {3, 1}});

  EXPECT_FALSE(graph.is_chain());
  EXPECT_EQ(graph.sink(), 2);
  EXPECT_THAT(graph.pred(0), ElementsAre(1, 4));
  EXPECT_THAT(graph.succ(3), ElementsAre(1));
  EXPECT_EQ(graph.depth(4), 0);
  EXPECT_EQ(graph.depth(0), 2);
  EXPECT_EQ(graph.length(), 4);
  EXPECT_THAT(graph.edges(), ElementsAre(std::pair(0, 2), std::pair(1, 0), std::pair(3, 1), std::pair(4, 0)));
}

TEST(StageGraph, SkipConnectionDoesNotShortenTheLongestPath) {
  const StageGraph graph(3, {{0, 1}, {1, 2}, {0, 2}});

  EXPECT_EQ(graph.depth(2), 2);
  EXPECT_THAT(graph.pred(2), ElementsAre(0, 1));
  EXPECT_THAT(graph.succ(0), ElementsAre(1, 2));
  EXPECT_FALSE(graph.is_chain());
}

TEST(StageGraph, ReversedNumbersAreAPathButNotAChain) {
  const StageGraph graph(3, {{2, 1}, {1, 0}});

  EXPECT_FALSE(graph.is_chain());
  EXPECT_EQ(graph.length(), 3);
  EXPECT_EQ(graph.sink(), 0);
}

TEST(StageGraph, EqualityIgnoresTheOrderOfEdges) {
  EXPECT_EQ(StageGraph(3, {{1, 2}, {0, 1}}), StageGraph::chain(3));
  EXPECT_NE(StageGraph(3, {{0, 2}, {1, 2}}), StageGraph::chain(3));
  EXPECT_NE(StageGraph::chain(2), StageGraph::chain(3));
}

TEST(StageGraph, RefusesWhatIsNoStageGraph) {
  EXPECT_THAT(refusal(0, {}), HasSubstr("0"));
  EXPECT_THAT(refusal(-3, {}), HasSubstr("-3"));
  EXPECT_THROW(StageGraph::chain(0), InputError);
  EXPECT_THAT(refusal(2, {{0, 2}}), AllOf(HasSubstr("0 -> 2"), HasSubstr("0..1")));
  EXPECT_THAT(refusal(2, {{-1, 1}}), HasSubstr("-1 -> 1"));
  EXPECT_THAT(refusal(2, {{0, 1}, {0, 1}}), HasSubstr("0 -> 1"));
  EXPECT_THAT(refusal(2, {{1, 1}, {0, 1}}), HasSubstr("1 -> 1"));
  EXPECT_THAT(refusal(3, {{0, 1}, {1, 0}, {1, 2}}), HasSubstr("cycle"));
  EXPECT_THAT(refusal(2, {{0, 1}, {1, 0}}), HasSubstr("cycle"));
  EXPECT_THAT(refusal(3, {{0, 1}, {0, 2}}), HasSubstr("2 stages"));
  EXPECT_THAT(refusal(2, {}), HasSubstr("2 stages"));
}

TEST(StageGraph, ShardsHaveALetter) {
  const StageGraph graph(4, {{0, 1}, {0, 2}, {1, 3}, {2, 3}});
  const StageGraph named = graph.with_shards({{1, 2}});
  EXPECT_EQ(named, graph);
  EXPECT_EQ(named.label(0), "0");
  EXPECT_EQ(named.label(1), "1a");
  EXPECT_EQ(named.label(2), "2b");
  EXPECT_EQ(named.shard(2), 1);
  EXPECT_EQ(named.shard(3), std::nullopt);
  EXPECT_EQ(graph.label(2), "2");
  std::vector<int> many(28);
  std::iota(many.begin(), many.end(), 0);
  const StageGraph wide = StageGraph::chain(28).with_shards({many});
  EXPECT_EQ(wide.label(25), "25z");
  EXPECT_EQ(wide.label(26), "26aa");
  EXPECT_EQ(wide.label(27), "27ab");
  EXPECT_THROW(static_cast<void>(graph.with_shards({{1}})), InputError);
  EXPECT_THROW(static_cast<void>(graph.with_shards({{1, 4}})), InputError);
  EXPECT_THROW(static_cast<void>(graph.with_shards({{1, 2}, {2, 3}})), InputError);
}

TEST(StageGraph, RandomGraphsKeepTheirEdges) {
  testing::Random random(11);
  for (int round = 0; round < 300; ++round) {
    const auto graph = testing::random_graph(random, testing::between(random, 1, 9));
    std::set<std::pair<int, int>> by_pred, by_succ;
    int sinks = 0, longest = 0;
    for (int s = 0; s < graph.size(); ++s) {
      int depth = 0;
      for (const int p : graph.pred(s)) {
        by_pred.emplace(p, s);
        depth = std::max(depth, graph.depth(p) + 1);
      }
      for (const int t : graph.succ(s)) by_succ.emplace(s, t);
      EXPECT_EQ(graph.depth(s), depth);
      EXPECT_TRUE(std::is_sorted(graph.pred(s).begin(), graph.pred(s).end()));
      EXPECT_TRUE(std::is_sorted(graph.succ(s).begin(), graph.succ(s).end()));
      longest = std::max(longest, depth + 1);
      if (graph.succ(s).empty()) {
        ++sinks;
        EXPECT_EQ(graph.sink(), s);
      }
    }
    EXPECT_EQ(sinks, 1);
    EXPECT_EQ(graph.length(), longest);
    EXPECT_EQ(by_pred, by_succ);
    EXPECT_EQ(by_pred, std::set(graph.edges().begin(), graph.edges().end()));
  }
}

}  // namespace
}  // namespace starpipe::plan
